# SPDX-License-Identifier: Apache-2.0
"""Random submissions, branches, aborts and retractions on a real scheduler.

    python stress_by_hand.py MODEL JOB.json

JOB: see ``test_stress.py``, which runs this.

Requests branch off what others are generating. Pages are counted one by one every few passes,
upstream's own checks run at every pass, and at the end every token of every answer is
compared with what the model alone answers.
"""

from __future__ import annotations

import json
import random
import sys
import time

from greedy_reference import check_answers
from page_census import census

from support.scheduler_in_process import SchedulerInProcess

VOCABULARY = range(3, 250)
MOST_LIVE = 40
PROMPTS = (1, 3, 9, 17, 40, 130)
LENGTHS = (1, 2, 5, 9, 20, 40, 90)
LONGEST_BRANCH = 150
CENSUS_EVERY = 7


class Stress:
    """The script: draws operations and checks what comes back."""

    def __init__(self, seed: int, operations: int):
        self.rng = random.Random(seed)
        self.goal = operations
        self.done: dict[str, int] = {}
        self.prompts: dict[str, list[int]] = {}
        self.space: dict[str, dict[str, str]] = {}
        self.live: list[str] = []
        self.wrong: list[str] = []
        self.passes = self.retracted = 0

    def __call__(self, run: SchedulerInProcess):
        self.run = run
        self.watch()
        while self.operations() < self.goal:
            yield self.operate()
            self.check()
            if self.rng.random() < 0.004:
                # Runs dry at times: the idle checks look at an empty pool.
                yield from run.until(run.scheduler.is_fully_idle)
        yield from run.until(run.scheduler.is_fully_idle)
        yield from ([] for _ in range(3))
        self.wrong += census(run.scheduler)

    def watch(self):
        """Count retractions."""
        from sglang.srt.managers import schedule_batch

        reset, stress = schedule_batch.Req.reset_for_retract, self

        def counted(req):
            stress.retracted += 1
            reset(req)

        schedule_batch.Req.reset_for_retract = counted

    def count(self, what):
        self.done[what] = self.done.get(what, 0) + 1

    def operations(self):
        """Submissions, aborts, updates, retractions and ends of requests so far."""
        return sum(self.done.values()) + self.retracted + len(self.run.ended)

    def operate(self):
        """Inputs of one pass: at times several, at times none."""
        self.live = [rid for rid in self.live if rid not in self.run.ended]
        inputs = []
        for _ in range(self.rng.choice((0, 1, 2, 3, 5, 8))):
            draw = self.rng.random()
            if draw < 0.14 and self.live:
                inputs.append(self.abort(self.rng.choice(self.live)))
            elif draw < 0.15:
                self.new_weights()
            elif len(self.live) < MOST_LIVE:
                inputs.append(self.submit())
        return inputs

    def abort(self, rid):
        from sglang.srt.managers.io_struct import AbortReq

        self.count("abort")
        return AbortReq(rid=rid)

    def new_weights(self):
        """What a weight update tells, without an update: KV stays right."""
        from sglang.srt.mem_cache.spec_radix_sharing.weights import weights_changed

        self.count("weights")
        weights_changed(self.run.scheduler)

    def submit(self):
        rid = f"{len(self.prompts)}."  # an abort takes all ids that begin with its own
        space = {}
        running = self.run.running()
        if running and self.rng.random() < 0.6:
            self.count("branch")
            parent = self.rng.choice(running)
            text = list(parent.origin_input_ids) + list(parent.output_ids)
            cut = self.rng.randint(len(parent.origin_input_ids), len(text))
            ids = text[: min(cut, LONGEST_BRANCH)]
            if self.rng.random() < 0.5:
                ids = ids + self.draw(self.rng.randint(1, 9))
            space = self.space.get(parent.rid, {})
        elif self.prompts and self.rng.random() < 0.3:
            self.count("repeat")
            other = self.rng.choice(list(self.prompts)[-50:])
            ids, space = list(self.prompts[other]), self.space[other]
        else:
            self.count("new")
            ids = self.draw(self.rng.choice(PROMPTS))
            if self.rng.random() < 0.3:
                space = {"extra_key": self.rng.choice("ab")}
        self.prompts[rid], self.space[rid] = ids, space
        self.live.append(rid)
        return self.run.generate(rid, ids, self.rng.choice(LENGTHS), **space)

    def draw(self, count):
        # A small alphabet: texts repeat themselves and drafts get accepted.
        return [self.rng.choice(VOCABULARY[:12]) for _ in range(count)]

    def check(self):
        self.passes += 1
        if self.passes % CENSUS_EVERY == 0:
            self.wrong += census(self.run.scheduler)
        if self.wrong:
            raise AssertionError(self.wrong[:5])

    def result(self):
        scheduler = self.run.scheduler
        sharer = scheduler.radix_sharer
        ends = list(self.run.ended.values())
        return {
            "operations": self.operations(),
            "by_kind": self.done,
            "passes": self.passes,
            "retracted": self.retracted,
            "ended": {kind: ends.count(kind) for kind in set(ends)},
            "unanswered": sorted(set(self.prompts) - set(self.run.ended)),
            "wrong": self.wrong[:20],
            "metrics": sharer.metrics.values() if sharer else None,
            "core": type(scheduler.tree_cache.tree_core).__name__,
            "overlap": scheduler.enable_overlap,
        }

    def answers(self):
        return [(self.prompts[rid], output) for rid, output in self.run.output.items()]


def run_job(model, job):
    """One scheduler, from its start to the comparison of its answers."""
    from sglang.srt.managers import scheduler

    began = time.monotonic()
    # Read from the environment when the module was imported.
    scheduler.TEST_RETRACT, scheduler.TEST_RETRACT_INTERVAL = True, job["retract_every"]
    stress = Stress(job["seed"], job["operations"])
    run = SchedulerInProcess(model, job["flags"], stress, give_up_s=job["give_up_s"])
    started = time.monotonic()
    run.run()
    ended = time.monotonic()
    found = {**stress.result(), "reference": check_answers(model, stress.answers())}
    found["seconds"] = {
        "start": round(started - began, 1),
        "operations": round(ended - started, 1),
        "reference": round(time.monotonic() - ended, 1),
    }
    with open(job["result"], "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    with open(sys.argv[2]) as file:
        run_job(sys.argv[1], json.load(file))
