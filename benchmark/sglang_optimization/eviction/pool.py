# SPDX-License-Identifier: Apache-2.0
"""A ``UnifiedRadixCache`` on CPU pools that hold no KV data.

The tree, its allocator and its locks are the ones that a server runs; only the
tensors that the slots would index are missing.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

_CORE_CLASSES = {"rust": "RustUnifiedTreeCore", "python": "UnifiedTreeCore"}


def make_cache(
    *,
    capacity: int,
    page_size: int = 1,
    core: str,
    eviction_policy: str = "lru",
    eviction_policy_config: dict[str, Any] | None = None,
    full_component: type | None = None,
    is_eagle: bool = False,
) -> UnifiedRadixCache:
    """Build an empty cache with a pool of ``capacity`` slots.

    Args:
        capacity: slots, a multiple of ``page_size``.
        core: ``"rust"`` or ``"python"``; falling back is an error, as it would
            report numbers under the wrong name.
        full_component: replacement of ``FullComponent`` (Python core only).
        is_eagle: key the tree by bigrams, as EAGLE speculation does.

    Raises:
        ValueError: capacity is not a multiple of the page size, or the policy
            rejects its configuration.
        RuntimeError: the requested core is not available here.
    """
    if capacity <= 0 or capacity % page_size:
        raise ValueError(f"capacity {capacity} is not a positive multiple of page size {page_size}")
    cache = UnifiedRadixCache(
        CacheInitParams(
            disable=False,
            req_to_token_pool=ReqToTokenPool(
                size=1, max_context_len=1, device="cpu", enable_memory_saver=False
            ),
            token_to_kv_pool_allocator=_allocator(capacity, page_size),
            page_size=page_size,
            is_eagle=is_eagle,
            eviction_policy=eviction_policy,
            eviction_policy_config=eviction_policy_config,
            tree_components=(ComponentType.FULL,),
            tree_core_backend=core,
            component_registry_override=(
                None if full_component is None else {ComponentType.FULL: full_component}
            ),
        )
    )
    built = type(cache.tree_core).__name__
    if built != _CORE_CLASSES[core]:
        raise RuntimeError(
            f"the {core} tree core is not available for policy {eviction_policy!r} "
            f"here: sglang built {built}"
        )
    return cache


def _allocator(capacity: int, page_size: int) -> Any:
    if page_size == 1:
        return TokenToKVPoolAllocator(
            capacity, dtype=torch.float16, device="cpu", kvcache=None, need_sort=False
        )
    return PagedTokenToKVPoolAllocator(
        capacity,
        page_size,
        dtype=torch.float16,
        device="cpu",
        kvcache=None,
        need_sort=False,
    )
