# SPDX-License-Identifier: Apache-2.0
"""Requests and a flush that arrive while a warming chunk is on its way.

python scheduler_by_hand.py MODEL RESULT.json [server flags]
"""

from __future__ import annotations

from support.scheduler_in_process import SchedulerInProcess, main

FLAGS = ["--max-total-tokens", "4096", "--schedule-policy", "lpm"]
TEXT = list(b"The quick brown fox jumps over the lazy dog. " * 3)
PROMPTS = {
    "first": [*TEXT, *b"Now what?"],
    "second": [*TEXT, *b"And then?"],
    "tenant": [*range(10, 34), 50, 51],
    "other": list(b"something else"),
}
NAMESPACE = {"tenant": {"extra_key": "tenant", "cache_salt": "pepper"}}


class Run:
    """The script, and what it saw."""

    def __init__(self, model, flags):
        self.arrived_during_chunk = {}
        self.engine = SchedulerInProcess(model, flags, lambda _: self.inputs())
        self.scheduler = self.engine.scheduler
        self.warmer = self.scheduler.cache_warmer
        self.until = self.engine.until

    def chunk_runs(self):
        """Whether a chunk was launched and no real request keeps the engine busy."""
        if self.warmer is None or self.warmer._req is None:
            return False
        live = self.scheduler.collect_inflight_reqs()
        return bool(live) and all(req.is_cache_warming for req in live)

    def inputs(self):
        from sglang.srt.managers.io_struct import FlushCacheReqInput

        computes = self.warmer is not None and self.warmer.hints is None
        if computes:
            yield from self.until(self.chunk_runs)
        yield from self.answer("during a chunk", "first")
        if computes:
            yield from self.until(self.chunk_runs)
            self.arrived_during_chunk["flush"] = True
        else:
            yield from self.until(self.scheduler.is_fully_idle)
        yield [FlushCacheReqInput()]
        yield from self.until(lambda: self.engine.control)
        if self.warmer is not None:
            yield from self.until(lambda: not self.warmer.has_work())
        for name in PROMPTS:
            yield from self.answer(name, name)
        yield [self.named(f"{name} again", name) for name in PROMPTS]
        yield from self.until(lambda: all(f"{name} again" in self.engine.ended for name in PROMPTS))
        yield from self.until(self.scheduler.is_fully_idle)

    def answer(self, rid, name):
        self.arrived_during_chunk[rid] = self.chunk_runs()
        yield [self.named(rid, name)]
        yield from self.until(lambda: rid in self.engine.ended)

    def named(self, rid, name):
        return self.engine.generate(rid, PROMPTS[name], 8, **NAMESPACE.get(name, {}))

    def result(self):
        engine = self.engine
        found = {
            "output": engine.output,
            "cached": engine.cached,
            "flushed": [o.success for o in engine.control if hasattr(o, "success")],
            "control": [type(o).__name__ for o in engine.control],
            "arrived_during_chunk": self.arrived_during_chunk,
            "core": type(self.scheduler.tree_cache.tree_core).__name__,
            "overlap": self.scheduler.enable_overlap,
        }
        if self.warmer is not None:
            found["prompts"] = self.warmer.planner.describe()["prompts"]
            order = self.scheduler.policy.prefix_order
            found["order_reads_hints"] = order is not None and order.hints is self.warmer.hints
        return found


if __name__ == "__main__":
    main(lambda model, flags: Run(model, [*FLAGS, *flags]))
