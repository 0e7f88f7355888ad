# SPDX-License-Identifier: Apache-2.0
"""What warming asks of the KV tree beyond the interface requests use.

Both tree cores offer it; only full attention is supported (``factory.py``).
"""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.cache_warming.prefix_index import PrefixKey
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache


def cached_tokens(tree_cache: UnifiedRadixCache, key: PrefixKey) -> int:
    """Tokens of ``key`` whose KV is on the device. Touches no recency."""
    return tree_cache.tree_core.match_full_device_prefix(key.radix_key())[0]


def drop_prefix(tree_cache: UnifiedRadixCache, key: PrefixKey) -> int:
    """Evict the cached path of ``key`` from its end, up to the first node that is
    locked or that a longer cached prompt stands on; returns the tokens evicted.

    On an idle engine only streaming sessions hold locks. Does nothing when there is
    a host tier, whose copies would come back.
    """
    if tree_cache.cache_controller is not None:
        return 0
    # The tree counts pairs of tokens under EAGLE: n of them span n + 1 tokens.
    tail = int(tree_cache.tree_core.is_eagle)
    before = left = cached_tokens(tree_cache, key)
    while left:
        # Matching splits a node that goes on past the key, which then has a child.
        match = tree_cache.match_prefix(
            MatchPrefixParams(key=key.upto(left + tail).radix_key())
        )
        (path,) = tree_cache.tree_core.collect_path_info([match.last_device_node])
        if not path or path[-1].num_children:
            break
        if _is_locked(tree_cache, match.last_device_node):
            break
        tracker = dict.fromkeys(tree_cache.tree_components, 0)
        tree_cache._evict_device_leaf(path[-1].node_id, tracker)
        left = path[-1].path_start
    return before - left


def _is_locked(tree_cache: UnifiedRadixCache, node: Any) -> bool:
    """Whether a device leaf is locked, which the Rust core does not tell.

    A lock more protects nothing new if the leaf, and so its path, has one.
    """
    before = tree_cache.protected_size()
    lock = tree_cache.lock(node)
    locked = tree_cache.protected_size() == before
    tree_cache.unlock(lock)
    return locked
