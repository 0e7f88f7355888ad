# SPDX-License-Identifier: Apache-2.0
"""A call's work is bounded; what it leaves is done by later calls, nobody is left."""

from __future__ import annotations

import pytest
from scheduling_world import World, world


def truth(made: World) -> list:
    """By prefix, ties by arrival; the prompts here share no first 32 tokens uncached."""
    return sorted(made.waiting, key=lambda r: (-made.matched(r)[1], r.rid))


def fill(made: World) -> None:
    made.insert(range(100))
    for n in range(90):
        # A cached prefix of 33 to 99 tokens, in no order, then something else.
        made.add([*range(33 + (n * 37) % 67), 50_000 + n])


@pytest.mark.parametrize("budget", (1, 7, 64))
def test_calls_converge(budget: int) -> None:
    with world({"matches_per_pass": budget}) as made:
        fill(made)
        order = made.policy.prefix_order
        for call in range(1, 90 // budget + 2):
            made.call()
            assert order.num_matches <= call * budget
        assert made.waiting == truth(made)


def test_unmatched_requests_run_last_and_in_turn() -> None:
    with world({"matches_per_pass": 4}) as made:
        fill(made)
        made.call()
        matched, rest = made.waiting[:4], made.waiting[4:]
        assert [r.rid for r in sorted(matched, key=lambda r: r.rid)] == [
            f"r{n:05d}" for n in range(1, 5)
        ]
        assert [r.rid for r in rest] == [f"r{n:05d}" for n in range(5, 91)]


def test_eviction_of_a_shared_prefix_reaches_all_who_rest_on_it() -> None:
    """In budget-sized portions: a shorter match must not stay remembered."""
    with world({"matches_per_pass": 16}) as made:
        fill(made)
        for _ in range(7):
            made.call()
        made.evict(100)
        for _ in range(7):
            made.call()
        assert all(r.num_matched_prefix_tokens == 0 for r in made.waiting)
        order = made.policy.prefix_order
        before = order.num_matches
        made.call()
        assert order.num_matches == before, "nothing is stale any more"


def test_sweeping_finds_changes_that_nobody_reported() -> None:
    """Trees whose changes are not all observed: every match is renewed in turn."""
    with world({"matches_per_pass": 16}) as made:
        fill(made)
        order = made.policy.prefix_order
        order.sweeping = True
        for _ in range(7):
            made.call()
        made.cache.prefix_watch = None  # the tree changes in silence
        made.evict(100)
        made.insert([*range(60), 7])
        for _ in range(12):
            made.call()
            assert order.num_matches <= order.num_calls * 16
        assert made.waiting == truth(made)
