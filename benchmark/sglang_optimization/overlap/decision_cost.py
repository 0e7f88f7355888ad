# SPDX-License-Identifier: Apache-2.0
"""CPU time of the decision, and of all that a step adds to the loop."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from common.stats import cpu_clock_ns, median

STEPS = 20_000
REPEATS = 7


def run() -> list[dict[str, Any]]:
    """One row a part, microseconds a step: median of the repeats."""
    bare = _median(lambda n: _loop(n, None))
    hooks = _median(lambda n: _loop(n, _controller(measures=True))) - bare
    told = _median(lambda n: _loop(n, _controller(measures=False))) - bare
    export = _export()
    return [
        {"part": "decide", "us": _median(_decide)},
        {"part": "averages and rule, of a timed step (one in four)", "us": _median(_observe)},
        {"part": "all hooks of a step", "us": hooks},
        {"part": "a step's share of exporting metrics", "us": export},
        {"part": "all together", "us": hooks + export},
        {"part": "all hooks on a rank that is only told", "us": told},
    ]


def _median(work: Any) -> float:
    """Microseconds a step of ``work(steps)``."""
    times = []
    for _ in range(REPEATS):
        began = cpu_clock_ns()
        work(STEPS)
        times.append((cpu_clock_ns() - began) / STEPS / 1e3)
    return median(times)


def _maker() -> Any:
    from sglang.srt.managers.dynamic_overlap.config import DynamicOverlapConfig
    from sglang.srt.managers.dynamic_overlap.decision import OverlapDecisionMaker

    return OverlapDecisionMaker(DynamicOverlapConfig())


def _decide(steps: int) -> None:
    decide = _maker().decide
    for _ in range(steps):
        decide(1, 32)


def _observe(steps: int) -> None:
    observe = _maker().observe
    for _ in range(steps):
        observe(1, 32, True, 0.001, 0.001, 0.008, 0.001, 0.0)


def _known_maker() -> Any:
    """As after start-up: the kind of step is known, so that some steps are timed only."""
    maker = _maker()
    for _ in range(32):
        maker.decide(1, 32)
        maker.observe(1, 32, True, 0.001, 0.001, 0.008, 0.001)
    maker.apply(list(maker.proposals.values()))
    return maker


def _export() -> float:
    """Microseconds a step of exporting what three kinds of steps have measured."""
    from sglang.srt.managers.dynamic_overlap.metrics import EXPORT_INTERVAL_STEPS, OverlapMetrics

    maker = _known_maker()
    for size in (4, 300):
        for _ in range(32):
            maker.decide(1, size)
            maker.observe(1, size, False, 0.001, 0.001, 0.008, 0.001)
    metrics = OverlapMetrics(maker, {"model_name": "m", "engine_type": "unified", "tp_rank": "0"})
    metrics.export()  # makes them

    def export(steps: int) -> None:
        for _ in range(steps // EXPORT_INTERVAL_STEPS):
            metrics.counts[True, "measured"] += 200
            metrics.counts[False, "probe"] += 56
            metrics.export()

    return _median(export)


def _controller(measures: bool) -> Any:
    """The hooks of a scheduler that has nothing else to do; metrics are not exported."""
    from sglang.srt.managers.dynamic_overlap.controller import DynamicOverlap
    from sglang.srt.managers.dynamic_overlap.metrics import OverlapMetrics
    from sglang.srt.managers.dynamic_overlap.timing import HostClock, StepTimer

    maker = _known_maker()
    scheduler = SimpleNamespace(
        require_mlp_sync=False,
        last_batch=True,
        result_queue=deque(),
        waiting_queue=[],
        _sched_idled=False,
        beam_coordinator=SimpleNamespace(_num_live_groups=0),
        process_batch_result=lambda *_: None,
    )
    timer = StepTimer(HostClock(), maker.observe) if measures else None
    metrics = OverlapMetrics(maker, None) if measures else None
    return DynamicOverlap(scheduler, maker, metrics, timer)


def _loop(steps: int, overlap: Any) -> None:
    """What the patched places do, in their order; with ``overlap`` None, what is left."""
    mode = SimpleNamespace(
        is_decode=lambda: True,
        is_extend=lambda: False,
        is_idle=lambda: False,
        is_prebuilt=lambda: False,
    )
    batch = SimpleNamespace(
        forward_mode=mode, reqs=[None] * 32, wasted_rows=0, is_extend_in_batch=False
    )
    copied = SimpleNamespace(synchronize=lambda: None)
    result = SimpleNamespace(copy_done=copied, overlap_step=None)
    queue = deque() if overlap is None else overlap.scheduler.result_queue
    for _ in range(steps):
        queue.append((batch, result))
        if overlap is not None:
            if overlap.maker.proposals:
                overlap.take(list(overlap.poll()))
            overlap.before_schedule()
            overlap.before_launch(False, False, False)
            overlap.launch_begins(batch)
            if overlap.timer.on_stream:
                overlap.timer.forward_begins()
            if overlap.timer.on_stream:
                overlap.timer.forward_ended()
            overlap.timer.launch_ended(result)
            overlap.timer.process_begins(result)
            overlap.process_ended(batch)
        queue.clear()
        result.copy_done, result.overlap_step = copied, None  # the next step's is new
