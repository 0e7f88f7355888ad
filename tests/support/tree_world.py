# SPDX-License-Identifier: Apache-2.0
"""Requests on a real ``UnifiedRadixCache``, one call a step of the scheduler."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.mem_cache.adaptive_eviction import find_policy
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from eviction.pool import make_cache


@dataclass
class Held:
    """A running request: its lock and what it must still find in the cache."""

    key: RadixKey
    length: int
    lock: Any
    touch: Any
    output_tokens: int


class TreeWorld:
    """One cache with its pool, and the requests that run on it.

    Args:
        policy, config: eviction policy and its configuration.
        capacity: slots of the pool.
        page_size: tokens a page.
        is_eagle: bigram keys.
    """

    def __init__(
        self,
        policy: str = "adaptive",
        config: dict[str, Any] | None = None,
        *,
        capacity: int = 64,
        page_size: int = 1,
        is_eagle: bool = False,
    ) -> None:
        self.cache = make_cache(
            capacity=capacity,
            page_size=page_size,
            core="python",
            eviction_policy=policy,
            eviction_policy_config=config,
            is_eagle=is_eagle,
        )
        self.allocator = self.cache.token_to_kv_pool_allocator
        self.policy = find_policy(self.cache)
        self.capacity = capacity
        self.page_size = page_size
        self.is_eagle = is_eagle
        self.held: list[Held] = []
        # Prompt, namespace and touch of requests that wait.
        self.waiting: list[tuple[Sequence[int], str | None, Any]] = []

    def key(self, tokens: Sequence[int], namespace: str | None = None) -> RadixKey:
        """A key; ``namespace`` "salt:x" is a cache salt, any other an extra key."""
        salt = namespace if namespace and namespace.startswith("salt:") else None
        return RadixKey(array("q", tokens), None if salt else namespace, cache_salt=salt)

    def units(self, tokens: Sequence[int]) -> int:
        """Slots that a request of these tokens takes in the tree."""
        count = len(tokens) - 1 if self.is_eagle else len(tokens)
        return max(count, 0) // self.page_size * self.page_size

    def cached(self, tokens: Sequence[int], namespace: str | None = None) -> int:
        """Length found, after a match that the policy must not count as a use."""
        key = self.key(tokens, namespace)
        return self.cache.match_prefix(MatchPrefixParams(key=key)).device_prefix_len

    def wait(
        self, tokens: Sequence[int], namespace: str | None = None, arrival: float | None = None
    ) -> None:
        """A request arrives that ``start_waiting`` admits later."""
        if self.policy is None or not self.units(tokens):
            return
        key = self.key(tokens, namespace)
        match = self.cache.match_prefix(MatchPrefixParams(key=key))
        touch = self.policy.admit(key, arrival_time=arrival, node_id=match.best_match_node)
        self.policy.current = None
        self.waiting.append((tokens, namespace, touch))

    def start_waiting(self, index: int) -> int | None:
        """Admit and prefill a waiting request."""
        tokens, namespace, touch = self.waiting.pop(index)
        return self.start(tokens, namespace, touch=touch)

    def start(
        self,
        tokens: Sequence[int],
        namespace: str | None = None,
        *,
        arrival: float | None = None,
        priority: int = 0,
        output_tokens: int = 0,
        touch: Any = None,
    ) -> int | None:
        """Admit and prefill a request; it stays locked until ``finish``.

        Returns the cached length, or None when the pool has no room.
        """
        length = self.units(tokens)
        if not length:
            return None
        key, cache = self.key(tokens, namespace), self.cache
        match = cache.match_prefix(MatchPrefixParams(key=key))
        hit = match.device_prefix_len
        lock = cache.lock(match.last_device_node)
        missing = length - hit
        room = self.allocator.available_size() + cache.evictable_size()
        if missing > room:
            cache.unlock(lock)
            return None
        if touch is not None and touch.epoch == self.policy.epoch:
            self.policy.catch_up(key, touch, match.best_match_node)
            self.policy.current = touch
        elif self.policy is not None:
            touch = self.policy.admit(
                key, arrival_time=arrival, priority=priority, node_id=match.best_match_node
            )
        values = [cache.path_device_indices(match.last_device_node)[:hit]]
        if missing:
            if missing > self.allocator.available_size():
                self.allocator.evict_to_free_tokens(cache, missing)
            slots = self.allocator.alloc(missing)
            assert slots is not None, f"evicted too little for {missing} slots"
            values.append(slots)
        result = cache.insert(
            InsertParams(key=key, value=torch.cat(values), prev_prefix_len=hit, priority=priority)
        )
        cache.unlock(lock)
        lock = cache.lock(result.last_device_node)
        self.held.append(Held(key, length, lock, touch, output_tokens))
        return hit

    def finish(self, index: int = 0) -> None:
        """The ``index``-th running request ends."""
        held = self.held.pop(index)
        if self.policy is not None:
            self.policy.finish(held.touch, held.output_tokens)
        self.cache.unlock(held.lock)

    def serve(self, tokens: Sequence[int], namespace: str | None = None, **more: Any) -> int | None:
        """``start`` and ``finish``."""
        hit = self.start(tokens, namespace, **more)
        if hit is not None:
            self.finish(len(self.held) - 1)
        return hit

    def evict(self, tokens: int) -> int:
        """Evict outside of an allocation; returns the tokens freed."""
        return self.cache.evict(EvictParams(num_tokens=tokens)).num_tokens_evicted

    def flush(self) -> None:
        """Empty cache and pool, as ``/flush_cache`` does when nothing runs."""
        assert not self.held
        self.cache.reset()
        self.allocator.clear()

    def check(self) -> None:
        """No slot is lost or owned twice, running requests keep all they hold."""
        cache = self.cache
        known = self.allocator.available_size() + cache.evictable_size() + cache.protected_size()
        assert known == self.capacity, f"{known} of {self.capacity} slots accounted for"
        slots = cache.all_values_flatten()
        assert len(slots.unique()) == len(slots), "a slot is in the tree twice"
        for held in self.held:
            found = cache.match_prefix(MatchPrefixParams(key=held.key)).device_prefix_len
            assert found == held.length, "a running request lost part of its prefix"
        cache.sanity_check()
