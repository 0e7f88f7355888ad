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
    return [
        {"part": "decide", "us": _median(_decide)},
        {"part": "observe a timed step (one in four)", "us": _median(_observe)},
        {"part": "all hooks of a step", "us": _median(lambda n: _hooks(n, True))},
        {"part": "the same on a rank that is only told", "us": _median(lambda n: _hooks(n, False))},
    ]


def _median(work: Any) -> float:
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


def _hooks(steps: int, measured: bool) -> None:
    """A loop that does nothing else, metrics counted but not exported."""
    from sglang.srt.managers.dynamic_overlap.controller import DynamicOverlap
    from sglang.srt.managers.dynamic_overlap.metrics import OverlapMetrics
    from sglang.srt.managers.dynamic_overlap.timing import HostClock, StepTimer

    maker = _maker()
    # As after start-up: the kind of step is known, so that some steps are timed only.
    for _ in range(32):
        maker.observe(1, 32, True, 0.001, 0.001, 0.008, 0.001)
    maker.apply(list(maker.proposals.values()))
    result = SimpleNamespace(copy_done=SimpleNamespace(synchronize=lambda: None))
    mode = SimpleNamespace(
        is_decode=lambda: True,
        is_extend=lambda: False,
        is_idle=lambda: False,
        is_prebuilt=lambda: False,
    )
    batch = SimpleNamespace(
        forward_mode=mode, reqs=[None] * 32, wasted_rows=0, is_extend_in_batch=False
    )
    queue: deque[Any] = deque()
    scheduler = SimpleNamespace(
        require_mlp_sync=False,
        last_batch=batch,
        result_queue=queue,
        waiting_queue=[],
        _sched_idled=False,
        beam_coordinator=SimpleNamespace(_num_live_groups=0),
        process_batch_result=lambda *_: None,
    )
    timer = StepTimer(HostClock(), maker.observe) if measured else None
    metrics = OverlapMetrics(maker, None) if measured else None
    overlap = DynamicOverlap(scheduler, maker, metrics, timer)
    copy_done = result.copy_done
    for _ in range(steps):
        overlap.poll()
        queue.append((batch, result))
        overlap.before_schedule()
        overlap.before_launch()
        overlap.launch_begins(batch)
        overlap.forward_begins()
        overlap.forward_ended()
        overlap.launch_ended(result)
        result.copy_done = copy_done
        overlap.process_begins(result)
        overlap.process_ended(batch, result)
        queue.clear()
