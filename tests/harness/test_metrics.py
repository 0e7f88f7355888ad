# SPDX-License-Identifier: Apache-2.0
"""Reading and subtracting Prometheus samples."""

from __future__ import annotations

import pytest

from harness import Metrics

BEFORE = """
# TYPE s:hits_total counter
s:hits_total{kind="a",rank="0"} 5
s:hits_total{kind="b",rank="0"} 1
# TYPE s:level gauge
s:level 9
# TYPE s:wait_seconds histogram
s:wait_seconds_bucket{le="1.0"} 2
s:wait_seconds_bucket{le="+Inf"} 2
s:wait_seconds_sum 1
s:wait_seconds_count 2
"""
AFTER = """
# TYPE s:hits_total counter
s:hits_total{kind="a",rank="0"} 9
s:hits_total{kind="b",rank="0"} 1
s:hits_total{kind="c",rank="1"} 4
# TYPE s:level gauge
s:level 3
# TYPE s:wait_seconds histogram
s:wait_seconds_bucket{le="1.0"} 3
s:wait_seconds_bucket{le="+Inf"} 4
s:wait_seconds_sum 7
s:wait_seconds_count 4
"""


@pytest.fixture
def change() -> Metrics:
    return Metrics.parse(AFTER) - Metrics.parse(BEFORE)


def test_counters_are_subtracted_and_new_series_count_from_zero(change):
    assert change.by("s:hits_total", "kind") == {"a": 4, "b": 0, "c": 4}
    assert change.total("s:hits_total", rank="0") == 4
    assert change.total("s:hits_total") == 8


def test_gauges_keep_the_later_value(change):
    assert change.total("s:level") == 3


def test_histograms_are_subtracted_bucket_by_bucket(change):
    assert change.total("s:wait_seconds_bucket", le="+Inf") == 2
    assert change.mean("s:wait_seconds") == 3


def test_a_counter_reset_by_a_restart_counts_from_zero():
    change = Metrics.parse(BEFORE) - Metrics.parse(AFTER)
    assert change.total("s:hits_total", kind="a") == 5


def test_an_unknown_name_is_an_error_that_lists_similar_ones(change):
    with pytest.raises(KeyError, match="s:hits_total"):
        change.total("s:hits")
    assert change.get("s:hits") == 0
    assert change.mean("s:missing") is None
