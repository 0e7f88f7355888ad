# SPDX-License-Identifier: Apache-2.0
"""What the scheduler did to the queue is told from the two lists alone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.managers.prefix_order.queue_diff import diff_queue


class Item:
    """Told apart by identity, as a request is."""


@st.composite
def changes(draw: st.DrawFn) -> tuple[list[Item], list[Item], list[Item], list[Item]]:
    """(last, kept in order, put first, appended)."""
    last = [Item() for _ in range(draw(st.integers(0, 60)))]
    kept = [item for item in last if draw(st.booleans())]
    put_first = [Item() for _ in range(draw(st.integers(0, 3)))]
    appended = [Item() for _ in range(draw(st.integers(0, 9)))]
    return last, kept, put_first, appended


@settings(max_examples=300, deadline=None)
@given(changes())
def test_removals_and_additions(change: tuple) -> None:
    last, kept, put_first, appended = change
    diff = diff_queue(last, put_first + kept + appended, set(last))
    assert diff.removed == [item for item in last if item not in kept]
    if kept:
        assert (diff.put_first, diff.tail) == (put_first, appended)
    else:
        # Nothing tells head from tail then; all count as arrived in line.
        assert (diff.put_first, diff.tail) == ([], put_first + appended)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=30), st.randoms(use_true_random=False))
def test_any_reordering_loses_nobody(picks: list[int], rng) -> None:
    last = [Item() for _ in range(31)]
    queue = [last[i] for i in dict.fromkeys(picks)]
    rng.shuffle(queue)
    new = [Item() for _ in range(3)]
    for item in new:
        queue.insert(rng.randint(0, len(queue)), item)
    diff = diff_queue(last, queue, set(last))
    kept = [item for item in last if item not in diff.removed]
    assert {*kept, *new} == set(queue)
    assert set(new) <= {*diff.put_first, *diff.tail}
    assert set(diff.removed).isdisjoint(queue)
