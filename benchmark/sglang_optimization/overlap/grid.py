# SPDX-License-Identifier: Apache-2.0
"""Always, never, dynamic and an oracle over batch size x host cost x forward cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from overlap.costs import StepCosts
from overlap.loop import DECODE, PREFILL, Decide, Outcome, Traffic, simulate


@dataclass(frozen=True)
class Cell:
    """One point of the grid.

    Attributes:
        traffic: name of the kind of traffic.
        rows: slots, and so the batch size.
        host_factor: host times over the calibrated ones.
        forward_s: forward pass of a full decode batch.
    """

    traffic: str
    rows: int
    host_factor: float
    forward_s: float


@dataclass(frozen=True)
class Kind:
    """Traffic for a number of slots, and whether launching blocks until a batch is computed."""

    traffic: Callable[[int], Traffic]
    synchronous: bool = False


TRAFFIC: dict[str, Kind] = {
    # Nobody waits for a slot; outputs end when the model ends them.
    "chat": Kind(lambda rows: Traffic(rows, rows, mean_tokens=128)),
    # Twice as many clients as slots, short answers: the worst case for a late end.
    "short, saturated": Kind(lambda rows: Traffic(2 * rows, rows, mean_tokens=8)),
    # The same with ends that are foreseen.
    "limited, saturated": Kind(lambda rows: Traffic(2 * rows, rows, mean_tokens=8, foreseen=1.0)),
    # A CPU.
    "short, blocking launch": Kind(
        lambda rows: Traffic(rows, rows, mean_tokens=8), synchronous=True
    ),
}

QUICK = {
    "traffic": ["chat", "short, saturated"],
    "rows": [1, 16, 128],
    "host_factor": [0.25, 1.0],
    "forward_s": [0.0005, 0.002, 0.008, 0.032],
}
FULL = {
    "traffic": list(TRAFFIC),
    "rows": [1, 8, 32, 128],
    "host_factor": [0.25, 1.0, 4.0],
    "forward_s": [0.0005, 0.002, 0.008, 0.032, 0.128],
}


def cells(spec: dict[str, list[Any]]) -> list[Cell]:
    """All combinations."""
    return [
        Cell(traffic, rows, host, forward)
        for traffic in spec["traffic"]
        for rows in spec["rows"]
        for host in spec["host_factor"]
        for forward in spec["forward_s"]
    ]


def fixed(prefill: bool, decode: bool) -> Decide:
    """Always the same for a phase."""
    choice = {PREFILL: prefill, DECODE: decode}
    return lambda phase, rows: choice[phase]


def run_cell(cell: Cell, costs: StepCosts, steps: int, seed: int) -> dict[str, Any]:
    """One row: throughput of every policy, and dynamic's share of the better fixed ones.

    Each plays ``steps`` full batches' worth of tokens. The oracle is the best of the four policies that are fixed for a phase, picked with
    the outcome known.
    """
    step = costs.with_host(cell.host_factor).with_forward(cell.forward_s, cell.rows)
    kind = TRAFFIC[cell.traffic]
    traffic = kind.traffic(cell.rows)

    def play(decide: Decide, observe: Any = None) -> Outcome:
        return simulate(
            step,
            traffic,
            decide,
            tokens=steps * cell.rows,
            seed=seed,
            observe=observe,
            synchronous=kind.synchronous,
        )

    outcomes = {
        (prefill, decode): play(fixed(prefill, decode))
        for prefill in (False, True)
        for decode in (False, True)
    }
    maker, decide, observe = make_dynamic()
    dynamic = play(decide, observe)
    always, never = outcomes[True, True], outcomes[False, False]
    oracle = max(outcome.tokens_per_s for outcome in outcomes.values())
    better = max(always.tokens_per_s, never.tokens_per_s)
    return {
        "traffic": cell.traffic,
        "rows": cell.rows,
        "host_factor": cell.host_factor,
        "forward_ms": cell.forward_s * 1e3,
        "always": always.tokens_per_s,
        "never": never.tokens_per_s,
        "dynamic": dynamic.tokens_per_s,
        "oracle": oracle,
        "of_better": dynamic.tokens_per_s / better,
        "of_oracle": dynamic.tokens_per_s / oracle,
        "overlapped": dynamic.overlapped,
        "wasted_always": always.wasted,
        "wasted_dynamic": dynamic.wasted,
        "ttft_always_ms": always.ttft_s * 1e3,
        "ttft_never_ms": never.ttft_s * 1e3,
        "ttft_dynamic_ms": dynamic.ttft_s * 1e3,
        "switches": maker.switches,
    }


def make_dynamic() -> tuple[Any, Decide, Any]:
    """The server's decision maker with its defaults, told of its own proposals at once."""
    from sglang.srt.managers.dynamic_overlap.config import DynamicOverlapConfig
    from sglang.srt.managers.dynamic_overlap.decision import OverlapDecisionMaker

    maker = OverlapDecisionMaker(DynamicOverlapConfig())

    def decide(phase: int, rows: int) -> bool:
        if maker.proposals:
            maker.apply(list(maker.proposals.values()))
        return maker.decide(phase, rows)[0]

    def observe(phase: int, rows: int, *times: float) -> None:
        if maker.wants_times(phase, rows):
            maker.observe(phase, rows, *times)

    return maker, decide, observe


def run(
    spec: dict[str, list[Any]], costs: StepCosts, steps: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Rows of all cells."""
    for cell in cells(spec):
        yield run_cell(cell, costs, steps, seed)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean throughput over the oracle's, and the worst cell against the better fixed one."""
    worst = min(rows, key=lambda row: row["of_better"])
    count = len(rows)
    return {
        "cells": count,
        "dynamic_of_oracle": sum(row["of_oracle"] for row in rows) / count,
        "always_of_oracle": sum(row["always"] / row["oracle"] for row in rows) / count,
        "never_of_oracle": sum(row["never"] / row["oracle"] for row in rows) / count,
        "worst_of_better": worst["of_better"],
        "worst_cell": {key: worst[key] for key in ("traffic", "rows", "host_factor", "forward_ms")},
        "cells_below_97": sum(row["of_better"] < 0.97 for row in rows),
        "always_worst": min(row["always"] / max(row["always"], row["never"]) for row in rows),
        "never_worst": min(row["never"] / max(row["always"], row["never"]) for row in rows),
    }
