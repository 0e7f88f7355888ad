# SPDX-License-Identifier: Apache-2.0
"""Measures host costs of a step on a real scheduler in this process, in half a minute.

    python benchmark/sglang_optimization/overlap/in_process.py MODEL RESULT.json

No HTTP and no tokenizer process: requests are handed to the loop where it receives them,
1, 2, 4, ... at a time, and what it sends is kept here. Written are the averages that the
server would decide by, as lines over the batch size.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from overlap.costs import fit
from support.scheduler_in_process import SchedulerInProcess

BATCHES = (1, 2, 4, 8, 16, 32)
PROMPT_TOKENS, OUTPUT_TOKENS = 16, 48
DECODE = 1
FLAGS = ["--max-total-tokens", "8192", "--random-seed", "1", "--enable-dynamic-overlap"]


def waves(run: SchedulerInProcess) -> Iterator[list[Any]]:
    """Input of each pass: the next wave once the last has ended."""
    for size in BATCHES:
        requests = []
        for number in range(size):
            ids = [40 + number, *range(40, 40 + PROMPT_TOKENS)]
            requests.append(run.generate(f"{size}-{number}", ids, OUTPUT_TOKENS))
            requests[-1].stream = True
        yield requests
        yield from run.until(lambda wave=requests: all(r.rid in run.ended for r in wave))


def main(model: str, path: str) -> None:
    """Runs the waves and writes the calibration."""
    run = SchedulerInProcess(model, FLAGS, waves)
    run.run()
    maker = run.scheduler.dynamic_overlap.maker
    known = {size: maker.averages(DECODE, size) for size in BATCHES}
    found: dict[str, Any] = {
        part: asdict(fit([(size, getattr(a, part)) for size, a in known.items() if a]))
        for part in ("schedule", "launch", "process")
    }
    found["sizes"] = [size for size, averages in known.items() if averages]
    found["averages_us"] = {
        size: {part: round(1e6 * getattr(a, part)) for part in ("schedule", "launch", "process")}
        for size, a in known.items()
        if a
    }
    Path(path).write_text(json.dumps(found, indent=1) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
