# SPDX-License-Identifier: Apache-2.0
"""Time of a decode step in the three loops, in turns of one scheduler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import stats
from common.cli import BenchError

SCRIPT = Path(__file__).with_name("loop_turns.py")


def measure(model: Path, rows: int, turns: int, seed: int) -> dict[str, Any]:
    """Step times, and the median ratios of dynamic's to those of the fixed loops.

    Args:
        rows: of the decode batch.
        turns: of each loop, five steps each.

    Raises:
        BenchError: the scheduler failed, or two loops answered differently.
    """
    with tempfile.TemporaryDirectory() as folder:
        log, path = Path(folder) / "log", Path(folder) / "turns"
        with log.open("wb") as output:
            ended = subprocess.run(
                [sys.executable, str(SCRIPT), str(model), str(path), str(rows), str(turns)],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if ended.returncode != 0:
            text = log.read_text(errors="replace")[-3000:]
            raise BenchError(f"the scheduler ended with {ended.returncode}:\n{text}")
        return {"rows": rows} | compared(json.loads(path.read_text()), seed)


def compared(turns: list[dict[str, float]], seed: int) -> dict[str, Any]:
    """Median milliseconds a step by loop; median ratios with 95 % intervals."""
    found: dict[str, Any] = {"turns": len(turns)}
    for mode in turns[0]:
        found[f"{mode}_ms"] = 1e3 * stats.median([turn[mode] for turn in turns])
        if mode != "dynamic":
            ratios = [turn["dynamic"] / turn[mode] for turn in turns]
            found[f"of_{mode}"] = stats.median(ratios)
            low, high = stats.median_interval(ratios, seed)
            found |= {f"of_{mode}_low": low, f"of_{mode}_high": high}
    return found
