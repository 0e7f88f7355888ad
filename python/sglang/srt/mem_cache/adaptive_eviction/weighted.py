# SPDX-License-Identifier: Apache-2.0
"""The weighted mode: recency, frequency and depth in one sum, lowest out first.

``w_recency * recency + w_frequency * hits / max_hits - w_depth * depth / max_depth``
with recency scaled to 0..1 over the leaves. The scales are taken anew after each
quarter pool of inserted tokens and fixed in between, so that the order of two
nodes cannot change behind the index.

It is a baseline. One hub prefix drives hits / max_hits to 0 for all others,
finished sessions stay hot, and nothing is remembered after eviction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import AdaptiveConfig
from .static_index import StaticIndex

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode


def path_tokens(node: UnifiedTreeNode) -> int:
    """Tokens from the root to the node's end; kept on the nodes once known."""
    unknown = []
    while node.parent is not None and node.reuse_record is None:
        unknown.append(node)
        node = node.parent
    depth = node.reuse_record or 0
    for node in reversed(unknown):
        depth += len(node.key)
        node.reuse_record = depth
    return depth


class WeightedPolicy:
    """Score of a leaf, and when its scales are renewed.

    Per node it keeps the path length in ``reuse_record``.
    """

    def __init__(self, config: AdaptiveConfig, page_size: int, allocator: Any = None):
        self.config = config
        self._allocator = allocator
        self._pool_tokens = getattr(allocator, "size", None) or 4096 * page_size
        self._new_tokens = self._pool_tokens
        self._oldest = 0.0
        self._span = self._hits = self._depth = 1.0

    def score(self, node: UnifiedTreeNode) -> float:
        c = self.config
        return (
            c.w_recency * ((float(node.last_access_time) - self._oldest) / self._span)
            + c.w_frequency * (node.hit_count / self._hits)
            - c.w_depth * (path_tokens(node) / self._depth)
        )

    def on_insert(self, node: UnifiedTreeNode) -> None:
        self._new_tokens += len(node.key)
        path_tokens(node)

    def on_split(self, head: UnifiedTreeNode, tail: UnifiedTreeNode) -> None:
        if tail.reuse_record is not None:
            head.reuse_record = tail.reuse_record - len(tail.key)

    def renew_scales(self, *indexes: StaticIndex) -> None:
        """Take new scales from the leaves when enough was inserted."""
        if self._new_tokens < max(1, self._pool_tokens // 4):
            return
        leaves = [node for index in indexes for node in index.leaves]
        if not leaves:
            return
        self._new_tokens = 0
        times = [float(node.last_access_time) for node in leaves]
        self._oldest = min(times)
        self._span = max(max(times) - self._oldest, 1.0)
        self._hits = max([1, *(node.hit_count for node in leaves)])
        self._depth = max([1, *(path_tokens(node) for node in leaves)])
        for index in indexes:
            index.reindex()
