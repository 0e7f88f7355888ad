# SPDX-License-Identifier: Apache-2.0
"""Runs of servers that were started several times, put together."""

from __future__ import annotations

import math

import pytest

from harness import Metrics
from overlap import engine


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
