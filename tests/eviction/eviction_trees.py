# SPDX-License-Identifier: Apache-2.0
"""Small real trees for the eviction tests: no model, KV slots on the CPU."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import torch
from sglang.srt.mem_cache.allocator import (
    PagedTokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
)
from sglang.srt.mem_cache.base_prefix_cache import (
    EvictParams,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache


class NoKVCache:
    """Stands for the pools' storage, which no test here reads."""

    def get_cpu_copy(self, *_: Any) -> None:
        raise AssertionError("not used")


def make_cache(
    capacity: int, policy: str = "adaptive", config: dict | None = None, **options: Any
) -> UnifiedRadixCache:
    """A unified tree over ``capacity`` KV slots; ``options`` go to CacheInitParams."""
    page_size = options.pop("page_size", 1)
    if page_size == 1:
        allocator = TokenToKVPoolAllocator(capacity, torch.float32, "cpu", NoKVCache(), False)
    else:
        allocator = PagedTokenToKVPoolAllocator(
            capacity, page_size, torch.float32, "cpu", NoKVCache(), False
        )
    return UnifiedRadixCache(
        CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=allocator,
            page_size=page_size,
            eviction_policy=policy,
            eviction_policy_config=config,
            tree_components=options.pop("tree_components", (ComponentType.FULL,)),
            **options,
        )
    )


def key_of(tokens: Any, **names: Any) -> RadixKey:
    return RadixKey(array("q", tokens), **names)


def put(cache: UnifiedRadixCache, tokens: Any, priority: int = 0, **names: Any):
    """Insert ``tokens`` with fresh slots, as a finished request without a report."""
    key = key_of(tokens, **names)
    slots = cache.token_to_kv_pool_allocator.alloc(len(tokens))
    assert slots is not None, "the test's pool is full"
    return cache.insert(InsertParams(key=key, value=slots.to(torch.int64), priority=priority))


def match(cache: UnifiedRadixCache, tokens: Any, **names: Any):
    return cache.match_prefix(MatchPrefixParams(key=key_of(tokens, **names)))


def cached(cache: UnifiedRadixCache, tokens: Any, **names: Any) -> int:
    """Resident tokens of a path, by a walk that touches nothing."""
    key = key_of(tokens, **names)
    return cache.tree_core.match_full_device_prefix(key)[0]


def evict(cache: UnifiedRadixCache, tokens: int) -> int:
    return cache.evict(EvictParams(num_tokens=tokens)).num_tokens_evicted


def resident_paths(cache: UnifiedRadixCache) -> set[tuple]:
    """Every page of the tree, named by its path of tokens."""
    out: set[tuple] = set()
    page = cache.tree_core.page_size
    stack: list[tuple[Any, tuple]] = [(cache.tree_core.root_node, ())]
    while stack:
        node, path = stack.pop()
        for child in node.children.values():
            tokens = tuple(child.key)
            for end in range(page, len(tokens) + 1, page):
                out.add(path + tokens[:end])
            stack.append((child, path + tokens))
    return out


@dataclass
class Served:
    """What one request met: hit tokens, and paths that were evicted for it."""

    hit: int
    victims: set = field(default_factory=set)


def serve(
    cache: UnifiedRadixCache,
    policy: Any,
    tokens: Any,
    arrival: float | None = None,
    output: int = 0,
    **names: Any,
) -> Served:
    """One request as the scheduler runs it: match, lock, admit, evict, insert, unlock."""
    key = key_of(tokens, **names)
    found = cache.match_prefix(MatchPrefixParams(key=key))
    lock = cache.lock(found.last_device_node)
    touch = None
    if policy is not None:
        touch = policy.admit(key, arrival, node_id=found.best_match_node)
    hit = found.device_prefix_len
    allocator = cache.token_to_kv_pool_allocator
    before = resident_paths(cache)
    page = cache.tree_core.page_size
    need = (len(tokens) - hit) // page * page
    allocator.evict_to_free_tokens(cache, need)
    victims = before - resident_paths(cache)
    slots = allocator.alloc(need)
    assert slots is not None, "request larger than what can be evicted"
    value = torch.cat([cache.path_device_indices(found.last_device_node), slots])
    result = cache.insert(InsertParams(key=key, value=value.to(torch.int64), prev_prefix_len=hit))
    cache.unlock(lock)
    lock = cache.lock(result.last_device_node)
    if policy is not None:
        policy.finish(touch, output)
    cache.unlock(lock)
    return Served(hit, victims)


def check(cache: UnifiedRadixCache, policy: Any = None) -> None:
    """Upstream's own invariants, slot accounting, and ours."""
    cache.tree_core.sanity_check([], [])
    free = cache.token_to_kv_pool_allocator.available_size()
    held = cache.tree_core.evictable_size() + cache.tree_core.protected_size()
    assert free + held == cache.token_to_kv_pool_allocator.size, (free, held)
    if policy is None:
        return
    store, pages, runs = policy.records.store, 0, 0
    for node in cache.tree_core._node_arena.values():
        record = node.reuse_record
        if node is cache.tree_core.root_node or record is None:
            continue
        length = len(node.key) // cache.tree_core.page_size
        assert len(record.hashes) == length
        assert sum(store.pages[slot] for slot in record.runs) == length
        above = node.parent.reuse_record
        if above is not None:
            assert (record.start, record.base) == (above.end, above.end_hash)
        pages += length
        runs += len(record.runs)
    assert policy.records.resident_pages == pages
    ghosts = list(policy.records.ghosts)
    assert sum(len(g.hashes) for g in ghosts) == policy.records.ghosts.pages
    assert policy.records.ghosts.pages <= policy.records.ghosts.capacity
    assert all(store.pages[g.slot] == len(g.hashes) for g in ghosts)
    assert len(ghosts) == len(policy.records.ghosts)
    assert len(store) == runs + len(ghosts), "a run is lost or counted twice"
