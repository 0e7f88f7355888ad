#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cache warming on a real server (SmolLM2-135M on the CPU platform): first requests, and cost."""

from __future__ import annotations

from common import cli
from warming.command import arguments, run

if __name__ == "__main__":
    raise SystemExit(cli.main(run, arguments()))
