# SPDX-License-Identifier: Apache-2.0
"""Components for priorities that never fall: upstream's policies, and the weighted mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from .indexed_component import IndexedFullComponent
from .static_index import StaticIndex
from .strategy import AdaptiveStrategy, IndexedStrategy
from .weighted import WeightedPolicy, path_tokens

if TYPE_CHECKING:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache


class _StaticIndexComponent(IndexedFullComponent):
    """Selection by a static key."""

    def _truncate(self, node: UnifiedTreeNode, take: int, tracker, device_frees):
        super()._truncate(node, take, tracker, device_frees)
        self._device_index.shortened(node)


class StaticFullComponent(_StaticIndexComponent):
    """An upstream policy on the incremental index (``index``, ``trim``)."""

    def __init__(self, cache: UnifiedRadixCache, params: CacheInitParams) -> None:
        super().__init__(cache, params)
        self._sessions = params.enable_session_radix_cache

    def _prepare(self) -> None:
        strategy = self.tree_core.eviction_strategy
        assert isinstance(strategy, IndexedStrategy)
        self.trim = strategy.config.trim

    def _new_index(self) -> StaticIndex:
        priority = self.tree_core.eviction_strategy.get_priority
        if not self._sessions:
            return StaticIndex(priority)
        return StaticIndex(lambda node: (self._protection(node), priority(node)))


class WeightedFullComponent(_StaticIndexComponent):
    """``adaptive`` in its weighted mode."""

    def __init__(self, cache: UnifiedRadixCache, params: CacheInitParams) -> None:
        super().__init__(cache, params)
        self._weighted: Optional[WeightedPolicy] = None

    def _new_index(self) -> StaticIndex:
        return StaticIndex(self._rank)

    def _rank(self, node: UnifiedTreeNode) -> tuple[int, float]:
        return self._protection(node), self._weighted.score(node)

    def _prepare(self) -> None:
        strategy = self.tree_core.eviction_strategy
        assert isinstance(strategy, AdaptiveStrategy)
        self.trim = strategy.config.trim
        self._weighted = WeightedPolicy(
            strategy.config, self._page_size, self._allocator
        )
        strategy.rank = self._weighted.score

    def commit_insert_component_data(
        self, node, is_new_leaf, params, result, cache_actions
    ) -> None:
        if is_new_leaf:
            self._weighted.on_insert(node)

    def redistribute_on_node_split(self, new_parent, child) -> None:
        super().redistribute_on_node_split(new_parent, child)
        self._weighted.on_split(new_parent, child)

    def _truncate(self, node: UnifiedTreeNode, take: int, tracker, device_frees):
        node.reuse_record = path_tokens(node) - take
        super()._truncate(node, take, tracker, device_frees)

    def _evict_device_start(self, request_cnt: int) -> None:
        super()._evict_device_start(request_cnt)
        self._weighted.renew_scales(self._device_index, self._host_index)
