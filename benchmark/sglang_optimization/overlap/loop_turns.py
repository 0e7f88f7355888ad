# SPDX-License-Identifier: Apache-2.0
"""One scheduler in this process whose loop changes every few steps: always, never, dynamic.

    python loop_turns.py MODEL RESULT.json ROWS TURNS

Two processes of one program differ by percents; here the same model, memory and requests
go through the three loops in turns of a few steps, between two of which the machine hardly
changes. Requests are handed to the loop where it receives them; no HTTP.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from overlap.engine import MODES
from support.scheduler_in_process import SchedulerInProcess

# Of a turn: those that are measured, after those in which the loops change over.
STEPS, SETTLING = 5, 2
PROMPT_TOKENS, OUTPUT_TOKENS = 16, 900
FLAGS = [
    *("--dtype", "float32", "--max-total-tokens", "16384", "--random-seed", "1"),
    *("--disable-radix-cache", "--enable-dynamic-overlap"),
]


class Loops:
    """Changes a scheduler's loop between two passes.

    Args:
        scheduler: one with dynamic overlap.
    """

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self._dynamic = scheduler.dynamic_overlap
        self._wanted: str | None = None

    def change(self, mode: str) -> None:
        """Has the loop end after this pass and ``mode``'s begin."""
        self._wanted = mode
        self.scheduler.gracefully_exit = True

    def run(self) -> None:
        """Runs loops until one ends that was not changed."""
        scheduler = self.scheduler
        while True:
            scheduler.gracefully_exit = False
            scheduler.run_event_loop()
            if self._wanted is None:
                return
            self._set(self._wanted)
            self._wanted = None

    def _set(self, mode: str) -> None:
        scheduler = self.scheduler
        queue = getattr(scheduler, "result_queue", None)
        while queue:
            scheduler.process_batch_result(*queue.popleft())
        scheduler.dynamic_overlap = self._dynamic if mode == "dynamic" else None
        overlaps = mode != "never"
        scheduler.enable_overlap = scheduler.tp_worker.enable_overlap = overlaps
        object.__setattr__(scheduler.batch_result_processor, "enable_overlap", overlaps)
        for batch in (scheduler.running_batch, scheduler.last_batch):
            if batch is not None:
                batch.enable_overlap = overlaps
        if mode == "always":
            # A loop that has a last batch takes the first result it launches for that one's.
            assert scheduler.last_batch is None or scheduler.last_batch.forward_mode.is_decode()
            scheduler.last_batch = None


def turns(rows: int, count: int, found: list[dict[str, float]], loops: list[Loops]) -> Any:
    """The script of the scheduler's input; appends a row of seconds a step for each turn."""

    def inputs(run: SchedulerInProcess) -> Iterator[list[Any]]:
        scheduler = run.scheduler
        wave = 0
        while len(found) < count:
            requests = []
            for number in range(rows):
                ids = [40 + number, *range(40, 40 + PROMPT_TOKENS)]
                requests.append(run.generate(f"{wave}-{number}", ids, OUTPUT_TOKENS))
                requests[-1].stream = True
            wave += 1
            yield requests
            yield from run.until(lambda: len(run.running()) == rows)
            end = scheduler.forward_ct + OUTPUT_TOKENS - 4 * (STEPS + SETTLING) * len(MODES)
            while scheduler.forward_ct < end and len(found) < count:
                row = {}
                order = list(MODES)
                shift = len(found) % len(order)
                for mode in order[shift:] + order[:shift]:
                    loops[0].change(mode)
                    yield []
                    first = scheduler.forward_ct + SETTLING
                    yield from run.until(lambda first=first: scheduler.forward_ct >= first)
                    first, began = scheduler.forward_ct, time.perf_counter()
                    yield from run.until(lambda first=first: scheduler.forward_ct >= first + STEPS)
                    row[mode] = (time.perf_counter() - began) / (scheduler.forward_ct - first)
                found.append(row)
            wave_ids = {each.rid for each in requests}
            yield from run.until(lambda ids=wave_ids: ids <= run.ended.keys())
        outputs = {}
        for rid, output in run.output.items():
            outputs.setdefault(rid.split("-")[1], []).append(output)
        for same in outputs.values():
            assert all(output == same[0] for output in same), "loops answered differently"

    return inputs


def main(model: str, path: str, rows: int, count: int) -> None:
    """Runs the turns and writes their rows; ends the process."""
    found: list[dict[str, float]] = []
    loops: list[Loops] = []
    run = SchedulerInProcess(model, FLAGS, turns(rows, count, found, loops), give_up_s=3600.0)
    loops.append(Loops(run.scheduler))
    loops[0].run()
    Path(path).write_text(json.dumps(found))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
