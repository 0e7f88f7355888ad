# SPDX-License-Identifier: Apache-2.0
"""What requests would cost if they ran in order of arrival.

What they really cost says little about that: longest-prefix order runs them when
they are cheap. So an LRU cache of the pool's size is followed in which requests run
in order of arrival. It knows the prompts of a kind, that is those that begin alike,
by what the last two have in common (their stem) and what the last one adds (its
tail), which is enough for shared system prompts, documents and conversations, and
costs one comparison a request. ``tests/scheduling/test_fcfs_cost.py`` holds it
against a real tree.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import Hashable, Optional

from sglang.srt.managers.prefix_order.entry import Entry

# Prompts that differ within so many tokens have nothing worth counting in common.
KIND_TOKENS = 32


class _Part:
    """Some tokens of the followed cache that were last used together."""

    __slots__ = ("kind", "size")

    def __init__(self, size: int, kind: Optional[Hashable] = None):
        self.size = size
        # Set on a stem: without it, its tail is worth nothing either.
        self.kind = kind


class _Known:
    """The last prompt of a kind and where it is held."""

    __slots__ = ("stem", "tail", "tokens")

    def __init__(self, tokens: array, stem: _Part, tail: _Part):
        self.tokens = tokens
        self.stem = stem
        self.tail = tail


class FcfsCosts:
    """Follows requests in order of arrival.

    Args:
        capacity: tokens that the prefix cache holds.
    """

    def __init__(self, capacity: int):
        self._capacity = capacity
        self._known: dict[Hashable, _Known] = {}
        # Least recently used first, empty ones left out; the sum of their sizes.
        self._parts: OrderedDict[_Part, None] = OrderedDict()
        self._held = 0

    def next_cost(self, entry: Entry, ahead: int) -> int:
        """Prefill tokens of the next request in order of arrival; at least one.

        Args:
            entry: the request; ``first_skips`` is what it found cached on arrival.
            ahead: tokens that fcfs computes between its arrival and its turn. What
                was cached then is still there if they are fewer than the pool holds.
        """
        tokens = entry.tokens
        cached = self._use(entry.namespace, tokens)
        if entry.first_skips and ahead < self._capacity:
            cached = max(cached, entry.first_skips)
        return max(1, len(tokens) - cached)

    def _use(self, namespace: Hashable, tokens: array) -> int:
        """The prompt runs: tokens of it that are held, and it is held from now on."""
        if len(tokens) < KIND_TOKENS:
            self._hold(_Part(len(tokens)))
            self._evict()
            return 0
        kind = (namespace, memoryview(tokens)[:KIND_TOKENS].tobytes())
        before = self._known.get(kind)
        shared = 0
        if before is not None:
            there = before.stem.size + before.tail.size
            shared = min(common_tokens(before.tokens, tokens), there)
            # What of it this prompt does not have stays behind, as old as it is.
            from_stem = min(shared, before.stem.size)
            before.stem.kind = None
            self._take(before.stem, from_stem)
            self._take(before.tail, shared - from_stem)
        stem, tail = _Part(shared, kind), _Part(len(tokens) - shared)
        self._known[kind] = _Known(tokens, stem, tail)
        # Ends of prompts go before what others may stand on.
        self._hold(tail)
        self._hold(stem)
        self._evict()
        return shared

    def _hold(self, part: _Part) -> None:
        self._parts[part] = None
        self._held += part.size

    def _take(self, part: _Part, tokens: int) -> None:
        part.size -= tokens
        self._held -= tokens
        if part.size == 0:
            # Not there any more if it was evicted.
            self._parts.pop(part, None)

    def _evict(self) -> None:
        while self._held > self._capacity:
            part, _ = self._parts.popitem(last=False)
            self._held -= part.size
            part.size = 0
            if part.kind is not None:
                del self._known[part.kind]


def common_tokens(one: array, other: array) -> int:
    """Length of the common prefix; by halves, each compared in C."""
    left, right = memoryview(one).cast("B"), memoryview(other).cast("B")
    size = one.itemsize
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low * size : middle * size] == right[low * size : middle * size]:
            low = middle
        else:
            high = middle - 1
    return low
