# SPDX-License-Identifier: Apache-2.0
"""A real tree whose changes are published into a history, and what it really holds."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import torch
from identities import expected, identity, page_digests
from sglang.srt.disaggregation.prefix_registry.history import History
from sglang.srt.disaggregation.prefix_registry.stream import Stream
from sglang.srt.disaggregation.prefix_registry.tap import TreeTap
from sglang.srt.disaggregation.prefix_registry.translate import Translator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from prefix_registry.tree import make_tree

CORES = ("python", "rust")


class PublishedTree:
    """A tree, its tap, translator and history, and one reader of what is published."""

    def __init__(
        self,
        core: str,
        *,
        capacity: int = 64,
        page_size: int = 4,
        eagle: bool = False,
        exclusive: bool = True,
    ) -> None:
        self.tree = make_tree(core, capacity=capacity, page_size=page_size, is_eagle=eagle)
        self.page_size, self.eagle, self.capacity = page_size, eagle, capacity
        self.tap = TreeTap(page_size, exclusive=exclusive)
        self.tree.tree_core.kv_events.registry_tap = self.tap
        self.upstream_events: list[Any] = []
        self.translator = Translator(page_size, bigram=eagle)
        self.history = History(identity(page_size, unit="bigram" if eagle else "token"))
        self.stream = Stream(expected(page_size))
        self.stream.receive(self.history.heartbeat())
        self.answer()
        self.seen: set[tuple] = set()
        self.held: list[Any] = []

    def answer(self) -> None:
        """Answers the stream's request, as the publisher does."""
        request = self.stream.due_request()
        assert request is not None
        for payload in self.history.answer(request):
            self.stream.receive_answer(payload)

    def publish(self) -> list[bytes]:
        """Flushes the tree's changes; returns the updates, delivered by the caller."""
        self.upstream_events += self.tree.take_events()
        events, _ = self.tap.drain()
        return self.history.commit(self.translator.translate(events))

    def deliver(self) -> None:
        for payload in self.publish():
            self.stream.receive(payload)

    def key(self, tokens: Sequence[int], extra_key: str | None, salt: str | None) -> RadixKey:
        return RadixKey(array("q", tokens), extra_key, cache_salt=salt)

    def resident(self, tokens: Sequence[int], extra_key=None, salt=None) -> int:
        """Tokens of the prompt that the tree holds on the device."""
        return self.tree.tree_core.match_full_device_prefix(self.key(tokens, extra_key, salt))[0]

    def serve(self, tokens, extra_key=None, salt=None, *, hold: bool = False) -> bool:
        """One request as the scheduler runs it; False when the pool has no room."""
        tree, key = self.tree, self.key(tokens, extra_key, salt)
        units = len(tokens) - 1 if self.eagle else len(tokens)
        length = units // self.page_size * self.page_size
        if length <= 0:
            return False
        match = tree.match_prefix(MatchPrefixParams(key=key))
        lock = tree.lock(match.last_device_node)
        missing = length - match.device_prefix_len
        allocator = tree.token_to_kv_pool_allocator
        if missing > allocator.available_size() + tree.evictable_size():
            tree.unlock(lock)
            return False
        values = [tree.path_device_indices(match.last_device_node)[: match.device_prefix_len]]
        if missing:
            if missing > allocator.available_size():
                allocator.evict_to_free_tokens(tree, missing)
            values.append(allocator.alloc(missing))
        result = tree.insert(
            InsertParams(key=key, value=torch.cat(values), prev_prefix_len=match.device_prefix_len)
        )
        tree.unlock(lock)
        self.seen.add((tuple(tokens), extra_key, salt))
        if hold:
            self.held.append(tree.lock(result.last_device_node))
        return True

    def release(self) -> None:
        if self.held:
            self.tree.unlock(self.held.pop())

    def evict(self, tokens: int) -> None:
        self.tree.evict(EvictParams(num_tokens=tokens))

    def flush(self) -> None:
        while self.held:
            self.release()
        self.tree.reset()
        self.tree.token_to_kv_pool_allocator.clear()

    def resident_digests(self) -> set[bytes]:
        """Digests of all the tree holds: every page is part of a prompt that was served."""
        found: set[bytes] = set()
        for tokens, extra_key, salt in self.seen:
            pages = self.resident(tokens, extra_key, salt) // self.page_size
            digests = page_digests(tokens, self.page_size, extra_key, salt, self.eagle)
            found.update(digests[:pages])
        return found

    def check(self) -> None:
        """The reader knows exactly what is resident, and so does the publisher."""
        wanted = self.resident_digests()
        allocator = self.tree.token_to_kv_pool_allocator
        used = self.capacity - allocator.available_size()
        assert len(wanted) * self.page_size == used, "the oracle missed pages"
        assert set(self.stream.registry.dump()) == wanted
        assert self.history.num_blocks == len(wanted)
        for tokens, extra_key, salt in self.seen:
            assert self.stream.estimate(
                list(tokens), extra_key=extra_key, cache_salt=salt
            ) == self.resident(tokens, extra_key, salt)
