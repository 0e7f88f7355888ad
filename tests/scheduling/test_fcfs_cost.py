# SPDX-License-Identifier: Apache-2.0
"""The estimate of what fcfs would compute, against a real tree that serves in order."""

from __future__ import annotations

import random
from array import array
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_world import world
from sglang.srt.managers.prefix_order.fcfs_cost import FcfsCosts, common_tokens

CAPACITY = 2400


def entry(tokens, first_skips=0, namespace=(None, None)):
    return SimpleNamespace(tokens=array("q", tokens), first_skips=first_skips, namespace=namespace)


def stream(seed: int, families: int, skew: float, count: int = 600):
    """Prompts of Zipf-popular stems with tails of their own."""
    rng = random.Random(seed)
    stems = [[1000 * f + i for i in range(rng.randint(60, 160))] for f in range(families)]
    weights = [1 / rank**skew for rank in range(1, families + 1)]
    for number in range(count):
        tail = [10**6 + 100 * number + i for i in range(rng.randint(5, 40))]
        yield rng.choices(stems, weights)[0] + tail


@pytest.mark.parametrize(("families", "skew"), [(4, 0.0), (30, 0.8), (60, 0.8), (60, 0.0)])
def test_it_is_near_what_a_cache_in_order_computes(families: int, skew: float) -> None:
    for seed in range(3):
        costs = FcfsCosts(CAPACITY)
        real = estimated = 0
        with world(None, capacity=CAPACITY) as made:
            for number, tokens in enumerate(stream(seed, families, skew)):
                request = made.add(tokens)
                computed = len(tokens) - made.matched(request)[0]
                made.waiting.clear()
                made.insert(tokens)
                guess = costs.next_cost(entry(tokens), ahead=CAPACITY)
                if number >= 100:  # the cache is full
                    real += computed
                    estimated += guess
        assert 0.8 < estimated / real < 1.2


def test_what_was_cached_at_arrival_counts_if_the_turn_comes_soon() -> None:
    tokens = list(range(200))
    assert FcfsCosts(CAPACITY).next_cost(entry(tokens, 150), ahead=CAPACITY - 1) == 50
    assert FcfsCosts(CAPACITY).next_cost(entry(tokens, 150), ahead=CAPACITY) == 200
    assert FcfsCosts(CAPACITY).next_cost(entry(tokens, 200), ahead=0) == 1


def test_a_conversation_grows() -> None:
    costs = FcfsCosts(CAPACITY)
    for turn in range(1, 10):
        assert costs.next_cost(entry(range(turn * 100)), ahead=CAPACITY) == 100


def test_a_stem_in_use_outlives_tails() -> None:
    costs = FcfsCosts(400)
    stem = list(range(200))
    costs.next_cost(entry(stem), ahead=400)
    for number in range(50):
        tail = [1000 * (number + 1) + i for i in range(60)]
        assert costs.next_cost(entry(stem + tail), ahead=400) == 60
    others = [10**6 + i for i in range(300)]
    assert costs.next_cost(entry(others), ahead=400) == 300
    assert costs.next_cost(entry(stem), ahead=400) == 200, "pushed out by the others"


def test_namespaces_share_nothing() -> None:
    tokens = list(range(200))
    costs = FcfsCosts(CAPACITY)
    assert costs.next_cost(entry(tokens), ahead=0) == 200
    assert costs.next_cost(entry(tokens, namespace=("t", None)), ahead=0) == 200
    assert costs.next_cost(entry([*tokens, 7]), ahead=0) == 1


def test_memory_is_bounded_by_the_capacity() -> None:
    costs = FcfsCosts(CAPACITY)
    for number in range(1000):
        costs.next_cost(entry([number * 100 + i for i in range(100)]), ahead=0)
        costs.next_cost(entry([*range(100), number]), ahead=0)
    assert sum(len(known.tokens) for known in costs._known.values()) <= CAPACITY + 100
    assert sum(part.size for part in costs._parts) == costs._held <= CAPACITY
    # Tails, and stems that may be empty.
    assert len(costs._parts) <= CAPACITY + len(costs._known)


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_tokens(one, other):
    expected = 0
    while expected < min(len(one), len(other)) and one[expected] == other[expected]:
        expected += 1
    assert common_tokens(array("q", one), array("q", other)) == expected
