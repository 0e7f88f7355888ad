# SPDX-License-Identifier: Apache-2.0
"""The automata against a scan of their texts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_ext.reference import SharedTexts, own_states

sam = pytest.importorskip("sgl_kernel_ext.suffix_automaton", reason="needs sgl-kernel-ext")

SEPARATOR = -1
tokens = st.integers(0, 2)
texts = st.lists(st.one_of(tokens, tokens, tokens, st.just(SEPARATOR)), max_size=60)
queries = st.lists(tokens, min_size=1, max_size=12)


def array(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


def assert_states_equal(found: list, expected: list[tuple]) -> None:
    assert [(k, n) for k, n, _ in found] == [(k, n) for k, n, _ in expected]
    for (_, _, shares), (_, _, wanted) in zip(found, expected, strict=True):
        assert shares == pytest.approx(wanted, rel=1e-4)


@settings(max_examples=300, deadline=None)
@given(texts, queries, st.integers(1, 9), st.sampled_from([1, 2]))
def test_own_states_are_those_of_a_scan(text, query, depth, ahead):
    automaton = sam.Automaton(depth)
    automaton.extend(array(text))
    plain = [None if token == SEPARATOR else token for token in text]
    assert_states_equal(
        automaton.match(array(query), ahead), own_states(plain, query, depth, ahead)
    )


@settings(max_examples=150, deadline=None)
@given(texts, st.integers(1, 9))
def test_suffixes_of_the_text_itself(text, depth):
    """The query that drafting makes: the end of the text, while it grows."""
    automaton = sam.Automaton(depth)
    plain: list[int | None] = []
    for token in text:
        automaton.extend(array([token]))
        plain.append(None if token == SEPARATOR else token)
        run = plain[len(plain) - plain[::-1].index(None) :] if None in plain else plain
        if run:
            found = automaton.match(array(run[-depth:]), 1)
            assert_states_equal(found, own_states(plain, run, depth))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), tokens), max_size=60),
    queries,
    st.integers(1, 9),
    st.sampled_from([1, 2]),
)
def test_shared_states_are_those_of_a_scan(events, query, depth, ahead):
    automaton, plain = sam.SharedAutomaton(depth), SharedTexts()
    ends = {}
    for stream, token in events:
        ends[stream] = automaton.append(ends.get(stream, -1), token)
        plain.append(stream, token)
    expected = plain.states(query, depth, ahead)
    if ahead == 2:  # kept for states of up to 8 tokens, the deepest of which may hold longer ones
        short = [i for i, (k, _, _) in enumerate(expected) if k >= 8]
        expected = expected[: short[0] + 1] if short else expected
    found = automaton.match(array(query), ahead)[: len(expected)]
    assert_states_equal(found, expected)


@pytest.mark.parametrize(
    "text",
    [
        [7] * 131072,
        ([1, 2, 3, 4, 5] * 9 + [1, 2, 3, 9]) * 2674,
        [value // 2 if value % 2 else 0 for value in range(131072)],
    ],
    ids=["one token", "two alternating phrases", "always a new successor"],
)
def test_adversarial_text_stays_small(text):
    """States and memory grow at most linearly; a quadratic walk would not end within the timeout."""
    automaton = sam.Automaton(24)
    automaton.extend(array(text))
    assert automaton.tokens == len(text)
    assert automaton.states <= len(text)
    assert automaton.bytes < 200 * len(text)


def test_long_repetition_adds_no_states():
    automaton = sam.Automaton(24)
    phrase = list(range(100))
    automaton.extend(array(phrase * 4))
    states, size = automaton.states, automaton.bytes
    automaton.extend(array(phrase * 100))
    assert automaton.states == states
    assert automaton.bytes - size <= 8 * 100 * len(phrase)  # the text itself and its growth


def test_counts_above_the_ring_are_exact():
    automaton = sam.Automaton(4)
    automaton.extend(array([5, 6] * 1000 + [5]))
    (k1, n1, shares), (k2, n2, _), *_ = automaton.match(array([6, 5]), 1)
    assert (k1, n1) == (1, 1000)
    assert shares == {6: pytest.approx(1.0)}
    assert (k2, n2) == (4, 999) or (k2, n2) == (2, 999)


def test_refuses_what_it_cannot_hold():
    with pytest.raises(ValueError, match="depth must be between 1 and 32"):
        sam.Automaton(0)
    with pytest.raises(ValueError, match="ahead must be 1 or 2"):
        sam.Automaton(4).match(array([1]), 3)
    with pytest.raises(IndexError, match="end is not a position"):
        sam.SharedAutomaton(4).append(5, 1)
