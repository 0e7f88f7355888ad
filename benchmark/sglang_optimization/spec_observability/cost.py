# SPDX-License-Identifier: Apache-2.0
"""Times what a scheduler runs in each step to watch speculation.

    python -m spec_observability.cost STEPS SEED BATCH...

prints JSON. A process of its own, since Prometheus' client decides at import whether it writes to
files, as it does on a server (``PROMETHEUS_MULTIPROC_DIR``).
"""

from __future__ import annotations

import json
import pickle
import random
import sys
import time
from types import SimpleNamespace
from typing import Any

# A request ends after this many steps, and another takes its place.
REQUEST_STEPS = 40
# Steps of the warm-up: metrics' children are made in them.
WARM_UP = 200
PARTS = 5
SHAPES = ("chain of 3", "model tree of 5", "n-gram tree of 11", "automaton tree of 11")


class _Request:
    """What the observer reads of a request."""

    def __init__(self, make_stats: Any, life: int) -> None:
        self.time_stats = make_stats()
        self.time_stats.enable_metrics = True
        self.kv = SimpleNamespace(kv_committed_len=100, kv_allocated_len=130)
        self.is_retracted = False
        self.life = life

    def finished(self) -> bool:
        return self.life <= 0


def measure(shape: str, batch_size: int, steps: int, seed: int = 0) -> dict[str, Any]:
    """CPU time of this thread a step, with every request streamed at every step.

    The lowest mean of ``PARTS`` parts: other work on the machine only adds.
    """
    from sglang.srt.observability.req_time_stats import SchedulerReqTimeStats
    from sglang.srt.speculative.observability import drafts, stages
    from sglang.srt.speculative.observability.metrics import SpecMetrics
    from sglang.srt.speculative.observability.observer import SpecObserver

    global _metrics
    if _metrics is None:
        _metrics = SpecMetrics({"model_name": "bench", "tp_rank": 0})
    rng = random.Random(seed)
    clock, log = stages.StageClock(), drafts.DraftLog()
    stages.install(clock)
    drafts.install(log)
    observer = SpecObserver(_metrics, clock, log)
    reqs = [
        _Request(SchedulerReqTimeStats, rng.randrange(1, REQUEST_STEPS)) for _ in range(batch_size)
    ]
    note, width, accepted = _drafting(shape, batch_size, rng)
    mode = SimpleNamespace(is_extend=lambda: False, is_idle=lambda: False)
    result = SimpleNamespace(
        speculative_num_draft_tokens=width,
        num_non_draft_tokens_per_req=1,
        num_correct_drafts_per_req_cpu=[len(a) - 1 for a in accepted],
    )
    marks = (
        ("draft", "tree_build", "verify", "draft_extend")
        if "model" in shape or "chain" in shape
        else ("lookup", "tree_build", "verify", "index_update")
    )
    spent = [0.0] * PARTS
    steps -= steps % PARTS
    for step in range(WARM_UP + steps):
        batch = SimpleNamespace(reqs=reqs, forward_iter=step, forward_mode=mode)
        started = time.thread_time()
        stages.begin(batch)
        for stage in marks:
            stages.mark(stage)
        stages.stop()
        note(batch)
        observer.on_result(batch, result, accepted)
        for req in reqs:
            req.life -= 1
        observer.on_processed(batch)
        # The part of a message to the detokenizer that is ours.
        summaries = [req.time_stats.spec_summary.meta_info() for req in reqs]
        pickle.dumps(summaries)
        ended = time.thread_time()
        if step >= WARM_UP:
            spent[(step - WARM_UP) * PARTS // steps] += ended - started
        for i, req in enumerate(reqs):
            if req.finished():
                reqs[i] = _Request(SchedulerReqTimeStats, REQUEST_STEPS)
    stages.install(None)
    drafts.install(None)
    return {"shape": shape, "batch": batch_size, "us_per_step": 1e6 * min(spent) * PARTS / steps}


_metrics: Any = None


def _drafting(shape: str, n: int, rng: random.Random) -> tuple[Any, int, list[list[int]]]:
    """What notes a step's drafts, the width, and what each request commits."""
    import numpy as np
    from sglang.srt.speculative.observability import drafts

    if shape == "chain of 3":
        verified = SimpleNamespace(spec_steps=3, topk=1, draft_token_num=4, positions=None)
        return lambda batch: drafts.note_verified(batch, verified), 4, [[1, 2]] * n
    if shape == "model tree of 5":
        import torch

        positions = torch.tensor([100, 101, 101, 102, 102, 103] * n)
        verified = SimpleNamespace(spec_steps=3, topk=2, draft_token_num=6, positions=positions)
        return lambda batch: drafts.note_verified(batch, verified), 6, [[1, 2]] * n
    width = 12
    tokens = np.zeros((n, width), np.int64)
    mask = np.zeros((n, width, width), np.bool_)
    accepted = []
    for row in range(n):
        tokens[row] = rng.sample(range(1, 50000), width)
        mask[row, 0, 0] = True
        parents = [rng.randrange(max(1, i)) for i in range(width)]
        for i in range(1, width):
            mask[row, i] = mask[row, parents[i]]
            mask[row, i, i] = True
        accepted.append([int(tokens[row, 1]), 7])  # node 1 is a child of the root
    drafted = SimpleNamespace(
        sizes=np.full(n, width),
        sources=np.ones((n, width), np.uint8),
        match_lengths=np.arange(n * width, dtype=np.uint8).reshape(n, width) % 24,
    )
    places = list(range(n))

    def note(batch: Any) -> None:
        if "automaton" in shape:
            drafts.note_proposal(batch, places, drafted)
        drafts.note_host_trees(batch, tokens.reshape(-1), mask.reshape(-1))

    return note, width, accepted


if __name__ == "__main__":
    count, chosen, *sizes = (int(text) for text in sys.argv[1:])
    print(json.dumps([measure(s, size, count, chosen) for s in SHAPES for size in sizes]))
