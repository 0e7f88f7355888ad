#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare scheduling policies: the real SchedulePolicy on the real tree, no model."""

from __future__ import annotations

from common import cli
from scheduling.command import arguments, run

if __name__ == "__main__":
    raise SystemExit(cli.main(run, arguments()))
