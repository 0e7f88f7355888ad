# SPDX-License-Identifier: Apache-2.0
"""Runs of servers that were started several times, put together."""

from __future__ import annotations

import math

import pytest

from common.cli import BenchError
from harness import Metrics
from overlap import engine, loop_cost


def row(start, round_number, mode, tokens_per_s, itl):
    return {
        "start": start,
        "round": round_number,
        "workload": "decode-heavy",
        "concurrency": 1,
        "mode": mode,
        "tokens_per_s": tokens_per_s,
        "ttft_p50_s": 0.1,
        "itl_p50_s": itl,
        "itl_p99_s": math.nan,
    }


def test_dynamic_is_compared_within_a_round_and_over_starts():
    rows = []
    # The machine is twice as fast in the second round; a start moves its ratio by 10 %.
    for start, factor in enumerate((0.9, 1.0, 1.1)):
        for number, speed in enumerate((100.0, 200.0)):
            rows += [
                row(start, number, "always", 0.5 * speed, 2 / speed),
                row(start, number, "never", speed, 1 / speed),
                row(start, number, "dynamic", factor * speed, 1 / (factor * speed)),
            ]
    found = {each["figure"]: each for each in engine.compare(rows, seed=0)}
    assert set(found) == {"tokens_per_s", "ttft_p50_s", "itl_p50_s"}  # NaN is no ratio
    throughput = found["tokens_per_s"]
    assert throughput["better"] == "never"
    assert throughput["of_never"] == pytest.approx(1.0)
    assert throughput["of_always"] == pytest.approx(2.0)
    assert (throughput["starts"], throughput["pairs"]) == (3, 6)
    assert throughput["low"] == pytest.approx(0.9) and throughput["high"] == pytest.approx(1.1)


def test_the_better_fixed_mode_is_picked_over_all_rounds():
    rows = []
    for number, (always, never, dynamic) in enumerate(
        [(100, 90, 99), (80, 100, 99), (98, 101, 99)]
    ):
        for mode, value in (("always", always), ("never", never), ("dynamic", dynamic)):
            rows.append(
                {"start": 0, "round": number, "workload": "w", "concurrency": 1, "mode": mode}
                | dict.fromkeys(engine.FIGURES, float(value))
            )
    found = {row["figure"]: row for row in engine.compare(rows, seed=0)}
    assert found["tokens_per_s"]["better"] == "never"
    assert found["tokens_per_s"]["of_better"] == pytest.approx(0.99)
    # The same numbers as times: the smaller ones are better.
    assert found["ttft_p50_s"]["better"] == "always"
    assert found["ttft_p50_s"]["of_better"] == pytest.approx(99 / 98)
    assert found["ttft_p50_s"]["low"] <= found["ttft_p50_s"]["of_better"]


def test_decisions_of_all_starts_are_counted_together():
    text = (
        f"# TYPE {engine.DECISIONS.removesuffix('_total')} counter\n"
        f'{engine.DECISIONS}{{outcome="drain",reason="measured"}} 5.0\n'
    )
    scrape = Metrics.parse(text)
    assert engine.decisions([scrape, scrape]) == [
        {"outcome": "drain", "reason": "measured", "decisions": 10}
    ]


def test_turns_of_the_loops_are_compared_one_by_one():
    # The machine is three times as slow in the second turn.
    turns = [
        {"always": 1.1, "never": 1.0, "dynamic": 1.01},
        {"always": 3.3, "never": 3.0, "dynamic": 3.03},
    ]
    found = loop_cost.compared(turns, seed=0)
    assert found["of_never"] == found["of_never_low"] == pytest.approx(1.01)
    assert found["of_always"] == pytest.approx(1.01 / 1.1)
    assert found["never_ms"] == pytest.approx(2000.0) and found["turns"] == 2


@pytest.mark.slow
def test_one_scheduler_goes_through_all_loops(tiny_model):
    pytest.importorskip(
        "sglang.srt.managers.dynamic_overlap", reason="topic dynamic-overlap is not in this build"
    )
    found = loop_cost.measure(tiny_model, rows=2, turns=6, seed=0)
    assert found["turns"] == 6 and min(found["of_never"], found["of_always"]) > 0
    with pytest.raises(BenchError, match="ended with"):
        loop_cost.measure(tiny_model / "none", rows=1, turns=1, seed=0)
