# SPDX-License-Identifier: Apache-2.0
"""The offline bound against exhaustive search, and against every real policy's trace."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eviction.optimum import optimum
from eviction.readers import read_trace
from eviction.trace import Request, Trace

SHARED_TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"


def make_trace(*requests: tuple[tuple[int, ...], tuple[int, ...]]) -> Trace:
    return Trace(
        "t", [Request(float(i), p, o) for i, (p, o) in enumerate(requests)], block_tokens=512
    )


def best_by_search(trace: Trace, capacity: int) -> int:
    """Hits of the best of all ways to keep prefix-closed sets of blocks.

    A block is the tuple of ids up to it. After a request the cache must hold the
    request's whole path, and may keep any other resident blocks that fit.
    """
    states: dict[frozenset[tuple[int, ...]], int] = {frozenset(): 0}
    for request in trace.requests:
        path = [request.path[: n + 1] for n in range(len(request.path))]
        if len(path) > capacity:
            continue
        following: dict[frozenset[tuple[int, ...]], int] = {}
        for held, hits in states.items():
            found = 0
            while found < len(request.blocks) and path[found] in held:
                found += 1
            others = sorted(held - set(path))
            for count in range(min(len(others), capacity - len(path)) + 1):
                for kept in combinations(others, count):
                    state = frozenset(kept).union(path)
                    if all(len(b) == 1 or b[:-1] in state for b in state):
                        following[state] = max(following.get(state, 0), hits + found)
        states = following
    return max(states.values())


paths = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple)
answers = st.lists(st.integers(0, 2), max_size=1).map(tuple)
tiny_traces = st.lists(st.tuples(paths, answers), min_size=1, max_size=7).map(
    lambda requests: make_trace(*requests)
)


@settings(max_examples=150, deadline=None)
@given(trace=tiny_traces, capacity=st.integers(1, 6))
def test_equals_exhaustive_search(trace, capacity):
    assert optimum(trace, capacity).hit_blocks == best_by_search(trace, capacity)


@settings(max_examples=60, deadline=None)
@given(trace=tiny_traces)
def test_grows_with_capacity_and_ends_at_all_repeats(trace):
    hits = [optimum(trace, size).hit_blocks for size in range(4, 40)]
    assert hits == sorted(hits)
    seen: set[tuple[int, ...]] = set()
    repeats = 0
    for request in trace.requests:
        path = [request.path[: n + 1] for n in range(len(request.path))]
        repeats += sum(block in seen for block in path[: len(request.blocks)])
        seen.update(path)
    assert hits[-1] == repeats


def test_keeps_what_is_needed_sooner():
    # Room for two blocks; A returns before B does, and C never.
    trace = make_trace(((1,), ()), ((2,), ()), ((3,), ()), ((1,), ()), ((2,), ()))
    # With 2 blocks: 3 must take 2's place, so 1 hits and 2 misses.
    assert optimum(trace, 2).hit_blocks == 1
    assert optimum(trace, 3).hit_blocks == 2


def test_a_request_longer_than_the_pool_is_rejected_and_changes_nothing():
    trace = make_trace(((1, 2), ()), ((5, 6, 7), ()), ((1, 2), ()))
    bound = optimum(trace, 2)
    assert (bound.hit_blocks, bound.total_blocks, bound.rejected) == (2, 7, 1)
    assert bound.hit_ratio == pytest.approx(2 / 7)


def test_pages_count_only_whole_ones():
    trace = make_trace(((1, 2, 3), ()), ((1, 2, 3), ()), ((1, 9, 3), ()))
    bound = optimum(trace, 8, page_size=2)
    # Whole pages are (1, 2), (1, 2), (1, 9): one hit of two blocks out of six.
    assert (bound.hit_blocks, bound.total_blocks) == (2, 6)


def test_equal_ids_under_other_prefixes_are_other_blocks():
    trace = make_trace(((1, 2), ()), ((3, 2), ()))
    assert optimum(trace, 10).hit_blocks == 0


@pytest.mark.skipif(not SHARED_TRACES.is_dir(), reason="needs the development traces")
@pytest.mark.parametrize(
    ("name", "capacity", "ratio"),
    [
        ("conversation_dev", 2_000, 0.2440),
        ("conversation_dev", 10_000, 0.3456),
        ("agents_dev", 2_000, 0.9309),
    ],
)
def test_development_traces_give_the_recorded_bounds(name, capacity, ratio):
    trace = read_trace(SHARED_TRACES / f"{name}.jsonl")
    assert optimum(trace, capacity).hit_ratio == pytest.approx(ratio, abs=5e-5)
