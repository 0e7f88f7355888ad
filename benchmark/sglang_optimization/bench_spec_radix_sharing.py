#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens recomputed with and without early sharing: branching agents and retraction."""

from __future__ import annotations

from common import cli
from spec_radix_sharing.command import arguments, run

if __name__ == "__main__":
    raise SystemExit(cli.main(run, arguments()))
