# SPDX-License-Identifier: Apache-2.0
"""One scheduler with given flags answers a list of prompts; run by test_speculation_combinations.

    python speculation_by_hand.py MODEL RESULT REQUESTS.json [server flags ...]

REQUESTS: lists of [ids, new tokens], a list a wave; a wave starts when the one before has ended,
and its requests a few passes apart. Writes the outputs, the cached prompt tokens and the sizes of
verified batches to RESULT.
"""

from __future__ import annotations

import json
import os
import sys

from support.scheduler_in_process import SchedulerInProcess

STAGGER = 2  # passes between two requests


def main(model, result, requests, flags):
    with open(requests) as file:
        waves = json.load(file)
    widths: dict[int, int] = {}

    def script(run):
        watch(run.scheduler, widths)
        for number, wave in enumerate(waves):
            for place, (ids, length) in enumerate(wave):
                yield [run.generate(f"{number}-{place}", ids, length)]
                yield from ([] for _ in range(STAGGER))
            names = {f"{number}-{place}" for place in range(len(wave))}
            yield from run.until(lambda names=names: names <= run.ended.keys())

    run = SchedulerInProcess(model, flags, script)
    run.run()
    found = {
        "output": run.output,
        "cached": run.cached,
        "ended": run.ended,
        "overlap": run.scheduler.enable_overlap,
        "widths": widths,
    }
    with open(result, "w") as file:
        json.dump(found, file)
    sys.stdout.flush()
    os._exit(0)


def watch(scheduler, widths):
    """Counts forward passes of the target by query rows a request."""
    runner = scheduler.tp_worker.model_runner
    forward = runner.forward

    def counted(batch, *args, **kwargs):
        if batch.forward_mode.is_target_verify():
            width = batch.spec_info.draft_token_num
            widths[width] = widths.get(width, 0) + 1
        return forward(batch, *args, **kwargs)

    runner.forward = counted


if __name__ == "__main__":
    main(*sys.argv[1:4], sys.argv[4:])
