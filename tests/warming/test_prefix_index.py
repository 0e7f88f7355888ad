# SPDX-License-Identifier: Apache-2.0
"""The index against a plain set of token prefixes."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.mem_cache.cache_warming.prefix_index import PrefixIndex, PrefixKey

TOKENS = st.lists(st.integers(0, 2), max_size=14)
KEYS = st.tuples(TOKENS, st.sampled_from([None, "x"]), st.sampled_from([None, "s"]))


def as_key(value):
    return PrefixKey(array("q", value[0]), *value[1:])


class Reference:
    """Every page-aligned prefix of every key, as a set."""

    def __init__(self, page):
        self.page = page
        self.prefixes = set()

    def add(self, value):
        tokens, *namespace = value
        for end in range(self.page, len(tokens) + 1, self.page):
            self.prefixes.add((tuple(tokens[:end]), *namespace))

    def match(self, value):
        tokens, *namespace = value
        ends = [
            end
            for end in range(self.page, len(tokens) + 1, self.page)
            if (tuple(tokens[:end]), *namespace) in self.prefixes
        ]
        return max(ends, default=0)


@settings(deadline=None, max_examples=200)
@given(page=st.sampled_from([1, 3]), added=st.lists(KEYS, max_size=6), asked=st.lists(KEYS))
def test_lengths_and_size_are_those_of_the_set(page, added, asked):
    index, reference = PrefixIndex(page), Reference(page)
    for value in added:
        index.add(as_key(value))
        reference.add(value)
    assert index.size == page * len(reference.prefixes)
    for value in [*asked, *added]:
        assert index.match(as_key(value)) == reference.match(value)
    index.rebuild(as_key(value) for value in added[1:])
    reference = Reference(page)
    for value in added[1:]:
        reference.add(value)
    assert index.size == page * len(reference.prefixes)


@pytest.mark.parametrize("page", [1, 2])
def test_families_are_the_branches_below_the_root(page):
    index = PrefixIndex(page)
    for tokens in ([1, 1, 2, 2], [1, 1, 3, 3], [5, 5, 5, 5]):
        index.add(PrefixKey(array("q", tokens)))
    asked = ([1, 1, 2, 2, 9], [1, 1, 3, 9], [1, 1, 2, 9], [5, 5, 9], [7, 7])
    nodes = [index.find(PrefixKey(array("q", tokens)))[1] for tokens in asked]
    first, second, third, other, none = (index.family(node) for node in nodes)
    assert first == second == third
    assert other not in (first, None)
    assert none is None
