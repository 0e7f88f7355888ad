#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the cross-instance prefix registry."""

from __future__ import annotations

from common import cli
from prefix_registry.command import arguments, run

if __name__ == "__main__":
    raise SystemExit(cli.main(run, arguments()))
