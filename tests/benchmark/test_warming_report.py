# SPDX-License-Identifier: Apache-2.0
"""Rows, targets and options of the cache-warming benchmark, from made-up results."""

from __future__ import annotations

import random

import pytest

from harness import Result
from warming import cost, first, report
from warming.command import arguments
from warming.prompts import Traffic


def answered(ttft: float, cached: int, ids: list[int], warm_s: float | None = None):
    def one(index: int) -> Result:
        return Result(
            index,
            ttft_s=ttft,
            latency_s=ttft + 1,
            prompt_tokens=110,
            cached_tokens=cached,
            completion_tokens=2,
            output_ids=ids,
        )

    return first.Answered(warm_s, [one(0), one(1)], [one(0)])


def test_first_rows_compare_with_cold():
    rows = first.rows(
        {
            "cold": answered(4.0, 0, [1, 2]),
            "tree": answered(4.0, 0, [1, 2], 0.1),
            "kv": answered(1.0, 100, [1, 3], 9.0),
        },
        {"a": 100, "b": 101},
    )
    cold, tree, kv = rows
    assert (cold["hit_ratio"], kv["hit_ratio"]) == (0, pytest.approx(200 / 220))
    assert kv["least_hit"] == pytest.approx(100 / 101)
    assert kv["ttft_of_cold"] == 0.25
    assert (tree["same_answers"], kv["same_answers"]) == (True, False)
    assert (cold["warm_s"], kv["warm_s"]) == (None, 9.0)
    met = {t["finding"]: t["met"] for t in report.targets(rows, [])}
    assert list(met.values()) == [True, True]
    kv["ttft_of_cold"], kv["least_hit"] = 0.36, 0.94
    assert [t["met"] for t in report.targets(rows, [])] == [False, False]


def test_cost_rows_are_by_the_idle_turns():
    def results(*ttft: float) -> list[Result]:
        return [Result(i, ttft_s=t, latency_s=t) for i, t in enumerate(ttft)]

    streams = {
        cost.IDLE: cost.Stream(results(1.0, 1.0, 2.0)),
        cost.BUSY: cost.Stream(results(1.1, 1.1, 2.6), 640.0, 2.0, 32),
    }
    idle, busy = cost.rows(streams)
    assert (idle["p50_ratio"], idle["warmed_tokens"], idle["step_s"]) == (1, None, None)
    assert busy["p50_ratio"] == pytest.approx(1.1)
    assert busy["step_s"] == pytest.approx(0.1)
    (target,) = report.targets([], [idle, busy])
    assert target["value"] == pytest.approx(busy["p99_ratio"]) and not target["met"]


def test_traffic_shares_nothing_and_repeats():
    traffic = Traffic(1.0, 20, (30, 60), 4).at(2.0)
    requests = traffic.make(random.Random(3))
    assert requests == traffic.make(random.Random(3))
    arrivals = [request.arrival_s for request in requests]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(10, rel=0.6)
    assert len({request.prompt[:40] for request in requests}) == 20


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--load", "1.5"], "'1.5' is not a number between 0 and 1"),
        (["--rate", "0"], "'0' is not a number above 0"),
        (["--rate", "nan"], "'nan' is not a number above 0"),
        (["--chunk-size", "0"], "not an integer of at least 1"),
    ],
)
def test_bad_options_are_named(capsys, words, expected):
    with pytest.raises(SystemExit) as ended:
        arguments().parse_args(words)
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err
