#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare draft proposers offline, or on a real server with ``--engine``."""

from __future__ import annotations

from common import cli
from spec_decode.command import arguments, run

if __name__ == "__main__":
    raise SystemExit(cli.main(run, arguments()))
