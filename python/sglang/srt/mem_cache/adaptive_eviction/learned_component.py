# SPDX-License-Identifier: Apache-2.0
"""Component of the learned mode: connects the tree, the cache and the policy.

The tree reports splits and removals, the cache new nodes and, through its hooks
around caching a request, which request they belong to and when it ends.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Optional

from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.components.base import EvictLayer

from .class_index import ClassIndex, LeafKey
from .config import AdaptiveConfig
from .indexed_component import IndexedFullComponent
from .metrics import EvictionMetrics
from .policy import LearnedPolicy
from .records import CLASS_MASK
from .request_touch import request_finished, touch_of
from .strategy import AdaptiveStrategy

if TYPE_CHECKING:
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

_FULL = ComponentType.FULL


class LearnedFullComponent(IndexedFullComponent):
    """``adaptive`` in its learned mode."""

    def __init__(self, cache: UnifiedRadixCache, params: CacheInitParams) -> None:
        super().__init__(cache, params)
        self._metrics: Optional[EvictionMetrics] = None
        self._started = 0.0
        self.reuse_policy: Optional[LearnedPolicy] = None

    def _prepare(self) -> None:
        strategy = self.tree_core.eviction_strategy
        assert isinstance(strategy, AdaptiveStrategy)
        config: AdaptiveConfig = strategy.config
        self.trim = config.trim
        strategy.rank = self._rank
        if self.reuse_policy is None:
            self.reuse_policy = LearnedPolicy(config, self._page_size, self._allocator)

    def _attached(self) -> None:
        policy = self.reuse_policy
        policy.indexes = (("device", self._device_index), ("host", self._host_index))
        policy.reset(self.tree_core)
        # Bound once: these are asked for at every step of an eviction.
        self._records, self._model = policy.records, policy.model
        store = policy.records.store
        self._seqs, self._classes, self._times = store.seq, store.cls, store.time

    # ---- selection ----

    def _new_index(self) -> ClassIndex:
        return ClassIndex(self._key_of)

    def _key_of(self, node: UnifiedTreeNode) -> LeafKey:
        record = node.reuse_record
        if record is None:
            record = self.reuse_policy.record_of(node)
        slot = record.runs[-1]
        return (
            (node.component_data[_FULL].session_ref, record.priority),
            self._classes[slot] & CLASS_MASK,
            self._seqs[slot],
            self._times[slot],
        )

    def _rank(self, node: UnifiedTreeNode) -> tuple:
        group, cls, seq, touched = self._key_of(node)
        return group, self._model.value(cls, self._records.now - touched), seq

    def _reorder(self, node: UnifiedTreeNode) -> None:
        self._records.reorder(node)

    def _drop(self, node: UnifiedTreeNode, tracker, device_frees) -> None:
        self._records.on_evicted(node, "device", len(node.key))
        super()._drop(node, tracker, device_frees)

    def _truncate(self, node: UnifiedTreeNode, take: int, tracker, device_frees):
        super()._truncate(node, take, tracker, device_frees)
        changed = self._records.on_truncate(node, take)
        self._device_index.shortened(node, changed)

    def _begin(self, index: ClassIndex) -> None:
        index.begin(self._records.now, self._model.rows)

    def _tail_tokens(self, node: UnifiedTreeNode) -> int:
        return self._records.tail_tokens(node)

    def _evict_device_start(self, request_cnt: int) -> None:
        self._started = time.perf_counter()
        super()._evict_device_start(request_cnt)

    def _evict_device_end(self) -> None:
        super()._evict_device_end()
        seconds = time.perf_counter() - self._started
        self.reuse_policy.eviction_seconds += seconds
        collector = self.cache.metrics_collector
        if collector is not None:
            if self._metrics is None:
                self._metrics = EvictionMetrics(collector.labels)
            self._metrics.observe(self.reuse_policy, seconds)

    # ---- what the tree reports ----

    def redistribute_on_node_split(self, new_parent, child) -> None:
        super().redistribute_on_node_split(new_parent, child)
        self._records.on_split(new_parent, child)

    def discard_deleted_session_leaf(self, node: UnifiedTreeNode) -> None:
        # Every removal from the tree comes through here.
        super().discard_deleted_session_leaf(node)
        self._records.on_remove(node)

    def evict_component(
        self, node, device_frees, host_frees, cache_actions, target=EvictLayer.DEVICE
    ) -> tuple[int, int]:
        device, host = super().evict_component(
            node, device_frees, host_frees, cache_actions, target
        )
        self.reuse_policy.record_of(node)
        if device:
            self._records.on_evicted(node, "device", device)
        if host:
            self._records.on_evicted(node, "host", host)
        return device, host

    def commit_insert_component_data(
        self, node, is_new_leaf, params: InsertParams, result, cache_actions
    ) -> None:
        self.reuse_policy.on_insert(node, params.key, params.priority)

    # ---- what the cache reports about requests ----

    def prepare_for_caching_req(
        self, req, insert_params, token_ids_len: int, is_finished: bool
    ) -> Optional[int]:
        self.reuse_policy.current = touch_of(self.reuse_policy, req)
        return None

    def cleanup_after_caching_req(
        self, req: Any, is_finished: bool, insert_result=None, insert_params=None
    ) -> None:
        policy = self.reuse_policy
        if is_finished:
            request_finished(policy, req)
        policy.current = None
