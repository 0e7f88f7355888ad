# SPDX-License-Identifier: Apache-2.0
"""CPU time of the decision, and of all that a step adds to the loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from common.stats import cpu_clock_ns, median

STEPS = 2_048
ROUNDS = 60


def run() -> list[dict[str, Any]]:
    """One row a part: microseconds a step, best and median of the rounds.

    Every round measures every part, so that all meet the machine's quiet moments.
    """
    parts: dict[str, Callable[[int], None]] = {
        "bare": lambda n: _loop(n, None),
        "decide": _decide,
        "observe": _observe,
        "hooks": partial(_loop, overlap=_controller(measures=True)),
        "alone": partial(_loop, overlap=_controller(measures=True, alone=True)),
        "told": partial(_loop, overlap=_controller(measures=False)),
        "export": _export(),
    }
    times: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(ROUNDS):
        for name, work in parts.items():
            began = cpu_clock_ns()
            work(STEPS)
            times[name].append((cpu_clock_ns() - began) / STEPS / 1e3)

    def row(part: str, *names: str, less: int = 0) -> dict[str, Any]:
        def summed(of: Callable[[list[float]], float]) -> float:
            return sum(of(times[name]) for name in names) - less * of(times["bare"])

        return {"part": part, "us": summed(min), "median_us": summed(median)}

    return [
        row("decide", "decide"),
        row("averages and rule, of a timed step (one in four)", "observe"),
        row("all hooks of a step", "hooks", less=1),
        row("all hooks of a step that runs alone (CPU)", "alone", less=1),
        row("a step's share of exporting metrics", "export"),
        row("all together", "hooks", "export", less=1),
        row("all hooks on a rank that is only told", "told", less=1),
    ]


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


def _known_maker(forward: float = 0.008, launch: float = 0.001) -> Any:
    """As after start-up: the kind of step is known, so that some steps are timed only."""
    maker = _maker()
    for _ in range(32):
        maker.decide(1, 32)
        maker.observe(1, 32, True, 0.001, launch, forward, 0.001)
    maker.apply(list(maker.proposals.values()))
    return maker


def _export() -> Callable[[int], None]:
    """Exports what three kinds of steps have measured, as often as in so many steps."""
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

    return export


def _controller(measures: bool, alone: bool = False) -> Any:
    """The hooks of a scheduler that has nothing else to do; metrics are not exported.

    Args:
        measures: as the rank that decides.
        alone: launching is computing, so that passes leave nothing in the queue.
    """
    from sglang.srt.managers.dynamic_overlap.controller import DynamicOverlap
    from sglang.srt.managers.dynamic_overlap.metrics import OverlapMetrics
    from sglang.srt.managers.dynamic_overlap.timing import HostClock, StepTimer

    maker = _known_maker(0.008, 0.008) if alone else _known_maker()
    scheduler = SimpleNamespace(
        enable_overlap=True,
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
    return DynamicOverlap(
        scheduler, maker, metrics, timer, plain_launches=alone, plain_passes=alone
    )


def _loop(steps: int, overlap: Any) -> None:
    """What the patched places do, in their order; with ``overlap`` None, what is left."""
    mode = SimpleNamespace(
        is_decode=lambda: True,
        is_extend=lambda: False,
        is_idle=lambda: False,
        is_prebuilt=lambda: False,
    )
    batch = SimpleNamespace(
        forward_mode=mode,
        reqs=[None] * 32,
        wasted_rows=0,
        is_extend_in_batch=False,
        has_grammar=False,
        sampling_info=SimpleNamespace(
            penalizer_orchestrator=SimpleNamespace(is_required=False),
            acc_additive_penalties=None,
            acc_scaling_penalties=None,
        ),
    )
    copied = SimpleNamespace(synchronize=lambda: None)
    result = SimpleNamespace(copy_done=copied, overlap_step=None)
    queue = deque() if overlap is None else overlap.scheduler.result_queue
    queues = overlap is None or not overlap._plain_passes
    for _ in range(steps):
        if queues:
            queue.append((batch, result))
        if overlap is not None:
            if overlap.maker.proposals:
                overlap.take(list(overlap.poll()))
            overlap.before_schedule()
            if not overlap.runs_alone(batch):
                overlap.before_launch(False, False, False)
            overlap.launch_begins(batch)
            if overlap.timer.on_stream:
                overlap.timer.forward_begins()
            if overlap.timer.on_stream:
                overlap.timer.forward_ended()
            overlap.launch_ended(result)
            overlap.timer.process_begins(result)
            overlap.process_ended(batch)
        if queues:
            queue.clear()
        result.copy_done, result.overlap_step = copied, None  # the next step's is new
