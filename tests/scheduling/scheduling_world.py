# SPDX-License-Identifier: Apache-2.0
"""A real tree, a real SchedulePolicy and real requests, without a model."""

from __future__ import annotations

from array import array
from contextlib import contextmanager
from typing import Any, Iterator, Sequence

import torch
from sglang.srt.managers import schedule_policy
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    EvictParams,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_context, get_schedule, publish
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs

SAMPLING = SamplingParams(max_new_tokens=4)


def publish_arguments() -> None:
    """Publish arguments of a model-free scheduler process, unless some are."""
    if not get_context().is_config_namespace_published("schedule"):
        publish(ServerArgs(model_path="dummy"), role="scheduler")


def make_cache(
    core: str,
    page_size: int,
    capacity: int,
    is_eagle: bool = False,
    eviction: str = "lru",
    eviction_config: dict[str, Any] | None = None,
) -> Any:
    if page_size == 1:
        allocator: Any = TokenToKVPoolAllocator(
            capacity, dtype=torch.float16, device="cpu", kvcache=None, need_sort=False
        )
    else:
        allocator = PagedTokenToKVPoolAllocator(
            capacity,
            page_size,
            dtype=torch.float16,
            device="cpu",
            kvcache=None,
            need_sort=False,
        )
    cache = UnifiedRadixCache(
        CacheInitParams(
            disable=False,
            req_to_token_pool=ReqToTokenPool(
                size=1, max_context_len=1, device="cpu", enable_memory_saver=False
            ),
            token_to_kv_pool_allocator=allocator,
            page_size=page_size,
            is_eagle=is_eagle,
            eviction_policy=eviction,
            eviction_policy_config=eviction_config,
            tree_components=(ComponentType.FULL,),
            tree_core_backend=core,
        )
    )
    expected = {"rust": "RustUnifiedTreeCore", "python": "UnifiedTreeCore"}[core]
    assert type(cache.tree_core).__name__ == expected
    return cache


class World:
    """What a scheduler holds, with the steps of its loop as methods."""

    def __init__(self, cache: Any, policy: Any):
        self.cache = cache
        self.policy = policy
        self.capacity = cache.token_to_kv_pool_allocator.size
        self.waiting: list[Req] = []
        self.processed = 0
        self._made = 0

    # ---- steps --------------------------------------------------------

    def add(self, tokens: Sequence[int], **fields: Any) -> Req:
        self._made += 1
        req = Req(f"r{self._made:05d}", "", array("q", tokens), SAMPLING, **fields)
        req.arrival_processed_tokens = self.processed
        req.time_stats.wait_queue_entry_time = float(self._made)
        self.waiting.append(req)
        return req

    def call(self) -> list[Req]:
        """One call of the policy; returns the queue in its new order."""
        self.policy.calc_priority(self.waiting, None, processed_tokens=self.processed)
        return self.waiting

    def serve(self, req: Req) -> None:
        """Admit, prefill and finish a request: its tokens enter the tree."""
        self.waiting.remove(req)
        self.insert(req.origin_input_ids + req.output_ids, req.extra_key, req.cache_salt)

    def insert(self, tokens: Any, extra_key: Any = None, cache_salt: Any = None) -> None:
        cache, page = self.cache, self.cache.page_size
        key = RadixKey(array("q", tokens), extra_key, cache_salt=cache_salt)
        units = len(key) - int(cache.tree_core.is_eagle)
        units = max(0, units) // page * page
        found = cache.match_prefix(MatchPrefixParams(key=key))
        hit = found.device_prefix_len
        if units <= hit:
            return
        lock = cache.lock(found.last_device_node)
        allocator = cache.token_to_kv_pool_allocator
        need = units - hit
        if allocator.available_size() < need:
            allocator.evict_to_free_tokens(cache, need)
        slots = allocator.alloc(need)
        if slots is None:
            cache.unlock(lock)
            return
        path = cache.path_device_indices(found.last_device_node)[:hit]
        raw = units + int(cache.tree_core.is_eagle)
        values = torch.cat([path, slots])
        if cache.tree_core.is_eagle:
            # A bigram key of n units spans n + 1 tokens; its values follow units.
            values = torch.cat([values, values[-1:]])
        cache.insert(
            InsertParams(
                key=RadixKey(array("q", tokens)[:raw], extra_key, cache_salt=cache_salt),
                value=values,
                prev_prefix_len=hit,
            )
        )
        cache.unlock(lock)
        self.processed += need

    def evict(self, tokens: int) -> None:
        self.cache.evict(EvictParams(num_tokens=tokens))

    def flush(self) -> None:
        self.cache.reset()
        self.cache.token_to_kv_pool_allocator.clear()

    def retract(self, req: Req, output: Sequence[int]) -> None:
        """The request ran, produced ``output``, and went back to the queue."""
        if req in self.waiting:
            self.waiting.remove(req)
        req.output_ids.extend(output)
        req.arrival_processed_tokens = self.processed
        self.waiting.append(req)

    # ---- what is true -------------------------------------------------

    def matched(self, req: Req) -> tuple[int, int]:
        """(device tokens, tokens its prefill would skip), matched afresh."""
        tokens = req.origin_input_ids + req.output_ids
        key = RadixKey(tokens, req.extra_key, cache_salt=req.cache_salt)
        found = self.cache.match_prefix(MatchPrefixParams(key=key))
        skips = found.device_prefix_len + found.host_hit_length
        return found.device_prefix_len, min(skips, len(tokens) - 1)


@contextmanager
def world(
    config: dict[str, Any] | None,
    *,
    policy: str = "lpm",
    core: str = "rust",
    page_size: int = 1,
    capacity: int = 4096,
    is_eagle: bool = False,
    priorities: bool = False,
    eviction: str = "lru",
    eviction_config: dict[str, Any] | None = None,
) -> Iterator[World]:
    """A world under ``--schedule-policy policy --schedule-policy-config config``."""
    publish_arguments()
    with get_schedule().override(schedule_policy=policy, schedule_policy_config=config):
        cache = make_cache(core, page_size, capacity, is_eagle, eviction, eviction_config)
        yield World(
            cache,
            schedule_policy.SchedulePolicy(policy, cache, False, priorities, False),
        )
