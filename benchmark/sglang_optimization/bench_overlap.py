#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Dynamic overlap: a calibrated model of the loop, and real servers."""

from __future__ import annotations

from common import cli
from overlap.command import arguments, run

if __name__ == "__main__":
    raise SystemExit(cli.main(run, arguments()))
