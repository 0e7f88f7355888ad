# SPDX-License-Identifier: Apache-2.0
"""Derived columns of the eviction benchmark."""

from __future__ import annotations

import pytest

from eviction import report


def row(policy: str, hit: float, capacity: int = 100, trace: str = "t", **other) -> dict:
    return {"trace": trace, "capacity": capacity, "policy": policy, "hit_ratio": hit, **other}


def test_gap_closed_is_relative_to_lru_and_the_optimum_of_the_same_cell():
    rows = [
        row("lru", 0.2),
        row("adaptive", 0.3),
        row("optimum", 0.6),
        row("lru", 0.5, 200),
        row("adaptive", 0.45, 200),
        row("optimum", 0.6, 200),
    ]
    report.complete(rows)
    gaps = {(r["policy"], r["capacity"]): r["gap_closed"] for r in rows}
    assert gaps["adaptive", 100] == pytest.approx(0.25)
    assert gaps["adaptive", 200] == pytest.approx(-0.5)
    assert gaps["lru", 100] == 0
    assert gaps["optimum", 200] == 1
    assert rows[1]["against_lru"] == pytest.approx(1.5)


def test_costs_are_relative_to_lru_on_the_python_core_of_the_same_cell():
    rows = [
        row("lru", 0.2, request_us=5.0),
        row("adaptive", 0.3, request_us=30.0),
        row("lru@python", 0.2, request_us=20.0),
        row("adaptive", 0.45, 200, request_us=30.0),
        row("optimum", 0.6),
    ]
    report.complete(rows)
    assert [r.get("against_python") for r in rows] == [0.25, 1.5, 1.0, None, None]


@pytest.mark.parametrize(("lru", "best"), [(None, 0.5), (0.5, None), (0.5, 0.504), (0.5, 0.5)])
def test_no_gap_is_reported_where_there_is_none(lru, best):
    assert report.gap_closed(0.5, lru, best) is None


@pytest.mark.parametrize(
    ("hit", "needed"),
    [(0.10, 100), (0.15, 150), (0.20, 200), (0.30, 600), (0.40, 1000), (0.05, None), (0.41, None)],
)
def test_equivalent_capacity_is_linear_between_measured_points(hit, needed):
    result = report.equivalent_capacity(hit, [100, 200, 1000], [0.1, 0.2, 0.4])
    assert result == (None if needed is None else pytest.approx(needed))


def test_equivalent_capacity_needs_five_capacities():
    def rows(count: int) -> list[dict]:
        sizes = [100 * 2**n for n in range(count)]
        lru = [row("lru", 0.1 * (n + 1), size) for n, size in enumerate(sizes)]
        other = [row("x", 0.1 * (n + 1) + 0.05, size) for n, size in enumerate(sizes)]
        result = lru + other
        report.complete(result)
        return result

    assert all("lru_capacity" not in r for r in rows(4))
    complete = rows(5)
    first = next(r for r in complete if r["policy"] == "x")
    assert first["lru_capacity"] == pytest.approx(150)
    assert first["lru_capacity_text"] == "150 (1.50x)"
    assert complete[-1]["lru_capacity"] is None
    assert complete[-1]["lru_capacity_text"] == "> 1,600"


def test_summary_has_means_and_the_worst_cell():
    rows = [
        row("lru", 0.2, request_us=10.0),
        row("x", 0.3, request_us=20.0),
        row("optimum", 0.4),
        row("lru", 0.4, 200, request_us=30.0),
        row("x", 0.38, 200, request_us=40.0),
        row("optimum", 0.6, 200),
    ]
    report.complete(rows)
    x = next(r for r in report.summary(rows) if r["policy"] == "x")
    assert x["cells"] == 2
    assert x["mean_gap_closed"] == pytest.approx((0.5 - 0.1) / 2)
    assert x["worst_against_lru"] == pytest.approx(0.95)
    assert x["mean_request_us"] == pytest.approx(30)
    best = next(r for r in report.summary(rows) if r["policy"] == "optimum")
    assert best["mean_request_us"] is None


def test_scale_ratios():
    rows = [
        {"policy": name, "leaves": leaves, "evict_us": cost}
        for name, leaves, cost in [("lru", 10, 4), ("lru", 100, 40), ("x", 10, 2), ("x", 100, 4)]
    ]
    report.complete_scale(rows)
    assert [r["against_lru"] for r in rows] == [1, 1, 0.5, 0.1]
    assert [r["against_fewest"] for r in rows] == [1, 10, 1, 2]
