#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What watching speculative decoding costs, beside the decode step of a real server."""

from __future__ import annotations

from common import cli
from spec_observability.command import arguments, run

if __name__ == "__main__":
    raise SystemExit(cli.main(run, arguments()))
