# SPDX-License-Identifier: Apache-2.0
"""Random submissions, branches, aborts and retractions on a real scheduler.

    python stress_by_hand.py MODEL RESULT.json SEED OPERATIONS [server flags]

Requests branch off what others are generating. Greedy decoding makes each answer a
function of its prompt, so every token is checked against every other request that had the
same text before it. Pages are counted one by one every few passes, and upstream's own
checks run at every pass (set the environment as ``test_stress.py`` does).
"""

from __future__ import annotations

import json
import os
import random
import sys

from page_census import census

from support.scheduler_in_process import SchedulerInProcess

VOCABULARY = range(3, 250)
MOST_LIVE = 10
CENSUS_EVERY = 7


class Stress:
    """The script: draws operations and checks what comes back."""

    def __init__(self, seed: int, operations: int):
        self.rng = random.Random(seed)
        self.goal = operations
        self.done: dict[str, int] = {}
        self.prompts: dict[str, list[int]] = {}
        self.space: dict[str, dict[str, str]] = {}
        self.wrong: list[str] = []
        self.passes = self.retracted = 0
        # The token that followed a text, by the text's rolling hash.
        self.next_token: dict[int, int] = {}
        self.compared = 0

    def __call__(self, run: SchedulerInProcess):
        self.run = run
        self.watch()
        while self.operations() < self.goal:
            yield self.operate()
            self.check()
            if self.rng.random() < 0.02:
                # Runs dry at times: the idle checks look at an empty pool.
                yield from run.until(run.scheduler.is_fully_idle)
        yield from run.until(run.scheduler.is_fully_idle)
        yield from ([] for _ in range(3))
        for rid in run.output:
            self.compare(rid)
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
        inputs = []
        for _ in range(self.rng.choice((0, 0, 1, 1, 2, 3))):
            live = [rid for rid in self.prompts if rid not in self.run.ended]
            draw = self.rng.random()
            if draw < 0.14 and live:
                inputs.append(self.abort(self.rng.choice(live)))
            elif draw < 0.16:
                self.new_weights()
            elif len(live) < MOST_LIVE:
                inputs.append(self.submit(live))
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

    def submit(self, live):
        rid = f"{len(self.prompts)}."  # an abort takes all ids that begin with its own
        space = {}
        running = self.run.running()
        if running and self.rng.random() < 0.6:
            self.count("branch")
            parent = self.rng.choice(running)
            text = list(parent.origin_input_ids) + list(parent.output_ids)
            cut = self.rng.randint(len(parent.origin_input_ids), len(text))
            ids = text[:cut][-300:]
            if self.rng.random() < 0.5:
                ids = ids + self.draw(self.rng.randint(1, 9))
            space = self.space.get(parent.rid, {})
        elif self.prompts and self.rng.random() < 0.3:
            self.count("repeat")
            other = self.rng.choice(list(self.prompts))
            ids, space = list(self.prompts[other]), self.space[other]
        else:
            self.count("new")
            ids = self.draw(self.rng.choice((1, 3, 17, 40, 130, 300)))
            if self.rng.random() < 0.3:
                space = {"extra_key": self.rng.choice("ab")}
        self.prompts[rid], self.space[rid] = ids, space
        length = self.rng.choice((1, 2, 9, 30, 80, 200))
        return self.run.generate(rid, ids, length, **space)

    def draw(self, count):
        # A small alphabet: texts repeat themselves and drafts get accepted.
        return [self.rng.choice(VOCABULARY[:12]) for _ in range(count)]

    def check(self):
        self.passes += 1
        if self.passes % CENSUS_EVERY == 0:
            self.wrong += census(self.run.scheduler)
        if self.wrong:
            raise AssertionError(self.wrong[:5])

    def compare(self, rid):
        """Each token of an answer with that of any other answer to the same text."""
        key = 0
        for token in self.prompts[rid]:
            key = hash((key, token))
        for position, token in enumerate(self.run.output[rid]):
            known = self.next_token.setdefault(key, token)
            self.compared += 1
            if known != token:
                self.wrong.append(
                    f"{rid}: token {position} is {token}, another request had {known}"
                )
                return
            key = hash((key, token))

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
            "tokens": self.compared,
            "distinct": len(self.next_token),
            "metrics": sharer.metrics.values() if sharer else None,
            "core": type(scheduler.tree_cache.tree_core).__name__,
            "overlap": scheduler.enable_overlap,
        }


def main(model, path, seed, operations, flags):
    stress = Stress(int(seed), int(operations))
    run = SchedulerInProcess(model, flags, stress)
    run.run()
    with open(path, "w") as file:
        json.dump(stress.result(), file)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:5], sys.argv[5:])
