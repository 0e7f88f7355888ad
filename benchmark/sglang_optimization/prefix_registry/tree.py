# SPDX-License-Identifier: Apache-2.0
"""A real ``UnifiedRadixCache`` with KV events on, over pools without data."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from eviction.pool import _CORE_CLASSES, _allocator


def make_tree(
    core: str, *, capacity: int, page_size: int, is_eagle: bool = False, events: bool = True
) -> Any:
    """An empty tree as a server builds it.

    Args:
        core: "rust" or "python".
        capacity: tokens, a multiple of ``page_size``.
        events: record what is stored and removed.

    Raises:
        RuntimeError: the core is not available here.
    """
    tree = UnifiedRadixCache(
        CacheInitParams(
            disable=False,
            req_to_token_pool=ReqToTokenPool(
                size=1, max_context_len=1, device="cpu", enable_memory_saver=False
            ),
            token_to_kv_pool_allocator=_allocator(capacity, page_size),
            page_size=page_size,
            is_eagle=is_eagle,
            tree_components=(ComponentType.FULL,),
            tree_core_backend=core,
            enable_kv_cache_events=events,
        )
    )
    if type(tree.tree_core).__name__ != _CORE_CLASSES[core]:
        raise RuntimeError(f"the {core} tree core is not available here")
    return tree
