#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare eviction policies on the real radix cache, without a model."""

from __future__ import annotations

from common import cli
from eviction.command import arguments, run

if __name__ == "__main__":
    raise SystemExit(cli.main(run, arguments()))
