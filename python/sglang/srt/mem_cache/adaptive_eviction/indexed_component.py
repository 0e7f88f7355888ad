# SPDX-License-Identifier: Apache-2.0
"""Full-attention component that evicts through an incremental index.

It replaces the base component's selection, on the device and on the host, and
leaves everything else to it. It stands on the eviction walk and on the notice of
sessions; its subclasses add the hooks that their policy needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import torch
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.components.full import FullComponent

from .class_index import ClassIndex
from .config import TrimConfig
from .static_index import StaticIndex

if TYPE_CHECKING:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

_FULL = ComponentType.FULL


class IndexedFullComponent(FullComponent):
    """FULL component with incremental selection and tail trimming.

    Subclasses supply the indexes. ``eviction_goal`` is what the caller of the
    running walk asked for, in tokens; a walk towards an allocator target may be
    given a larger quota than it needs.
    """

    trim: TrimConfig
    # Read by schedule-prefix-order, see _tell_prefix_watch.
    tells_prefix_watch = True

    def __init__(self, cache: UnifiedRadixCache, params: CacheInitParams) -> None:
        super().__init__(cache, params)
        self.eviction_goal = 0
        self._allocator = params.token_to_kv_pool_allocator
        self._page_size = params.page_size
        self._least = 1
        self._device_index: Any = None
        self._host_index: Any = None

    # ---- set-up ----

    def _new_index(self) -> ClassIndex | StaticIndex:
        raise NotImplementedError

    def _prepare(self) -> None:
        """Before new indexes are made: read the options off the tree's strategy."""
        raise NotImplementedError

    def _attached(self) -> None:
        """The tree is empty and the indexes are new."""

    def reset_session_state(self) -> None:
        super().reset_session_state()
        # The cache calls this after each reset of the tree, which replaced the
        # leaf sets by plain ones.
        self._attach()

    def _attach(self) -> None:
        tree = self.tree_core
        self._prepare()
        pool = getattr(self._allocator, "size", None) or 0
        self._least = self.trim.least(pool, self._page_size)
        self._device_index = self._new_index()
        self._host_index = self._new_index()
        self._attached()
        for name, index in (
            ("evictable_device_leaves", self._device_index),
            ("evictable_host_leaves", self._host_index),
        ):
            present = sorted(getattr(tree, name), key=lambda node: node.id)
            setattr(tree, name, index.leaves)
            for node in present:
                index.leaves.add(node)

    def _protection(self, node: UnifiedTreeNode) -> int:
        """Session references of a leaf; more of them are evicted later."""
        return node.component_data[_FULL].session_ref

    def _leaf_changed(self, node: Optional[UnifiedTreeNode]) -> None:
        root = self.tree_core.root_node
        while node is not None and node is not root:
            self._reorder(node)
            node = node.parent

    def _reorder(self, node: UnifiedTreeNode) -> None:
        """The node's place among the leaves may have changed."""
        self._device_index.leaves.changed(node)
        self._host_index.leaves.changed(node)

    def _dec_session_coverage(self, session_id: str, leaf: UnifiedTreeNode) -> None:
        super()._dec_session_coverage(session_id, leaf)
        self._leaf_changed(leaf)

    def _advance_session_coverage(self, session_id, leaf, old_ancestor) -> None:
        super()._advance_session_coverage(session_id, leaf, old_ancestor)
        self._leaf_changed(leaf)

    def _recede_session_coverage(self, session_id, leaf, fallback) -> None:
        super()._recede_session_coverage(session_id, leaf, fallback)
        self._leaf_changed(leaf)

    # ---- sizes ----

    def value_len(self, node: UnifiedTreeNode) -> int:
        # Asked for at every lock and unlock of every node of a path, where the
        # tensor's own len() takes longer than all else that is done there.
        value = node.component_data[_FULL].value
        return 0 if value is None else value.numel()

    reclaimable_value_len = value_len

    # ---- locks ----

    def release_component_lock(
        self, node: UnifiedTreeNode, params: Any, lock_host: bool = False
    ) -> None:
        """Release a path from ``node`` upwards, as the base component does.

        The base component asks at every node whether it is a leaf now. Only a node
        without a child on the device can be one: on the way up, ``node`` itself,
        which whoever releases looks at, and what is above an evicted part.
        """
        if lock_host:
            super().release_component_lock(node, params, lock_host)
            return
        tree = self.tree_core
        evictable = tree.component_evictable_size_
        protected = tree.component_protected_size_
        root, current, child_on_device = tree.root_node, node, False
        while current is not root:
            data = current.component_data[_FULL]
            assert data.lock_ref > 0, f"node {current.id} is released, but not locked"
            data.lock_ref -= 1
            on_device = data.value is not None
            if data.lock_ref == 0:
                if on_device:
                    tokens = data.value.numel()
                    evictable[_FULL] += tokens
                    protected[_FULL] -= tokens
                if not child_on_device and current is not node:
                    tree._update_evictable_leaf_sets(current)
            child_on_device = on_device
            current = current.parent

    # ---- eviction ----

    def _tail_tokens(self, node: UnifiedTreeNode) -> int:
        """Tokens at the end of a leaf that the index values alike."""
        return len(node.key)

    def _tail_length(self, node: UnifiedTreeNode, need: int) -> int:
        """Tokens to take off the leaf's end when ``need`` are asked for."""
        length = len(node.key)
        if not self.trim.trim:
            return length
        page_size = self.tree_core.page_size
        take = max(need, self._least)
        take = min(-(-take // page_size) * page_size, self._tail_tokens(node))
        return min(take, length)

    def _split_tail(self, node: UnifiedTreeNode, take: int, cache_actions: list):
        """Make the last ``take`` tokens of a leaf a node of their own.

        The tail keeps the node's id. A split counts as no access, so both parts
        keep the leaf's recency.
        """
        recency = node.last_access_time
        head, action = self.tree_core._split_node(node.key, node, len(node.key) - take)
        head.last_access_time = node.last_access_time = recency
        if action is not None:
            cache_actions.append(action)

    def _only_on_device(self, node: UnifiedTreeNode) -> bool:
        """Whether nothing outside the tree's FULL device state knows this leaf."""
        return not (
            node.children
            or node.hash_value is not None
            or node.event_hash_value is not None
            or node.component_data[_FULL].host_value is not None
        )

    def _tell_prefix_watch(self, node: UnifiedTreeNode) -> None:
        """The matches that end on this leaf are about to lose tokens.

        The cache tells of the leaves that it evicts; it sees none evicted in place.
        """
        watch = getattr(self.cache, "prefix_watch", None)
        if watch is not None:
            watch.on_device_leaf_evicted(node.id)

    def _drop(self, node: UnifiedTreeNode, tracker, device_frees) -> None:
        """Remove a leaf that is only on the device, in place.

        What the tree's own removal comes to without other components, host values
        and events; nodes above a device leaf are on the device too.
        """
        self._tell_prefix_watch(node)
        tree, parent = self.tree_core, node.parent
        freed = self.reclaimable_value_len(node)
        device_frees[_FULL].append(node.component_data[_FULL].value)
        tracker[_FULL] += freed
        tree.component_evictable_size_[_FULL] -= freed
        tree.evictable_device_leaves.discard(node)
        tree._remove_leaf_from_parent(node)
        tree._update_evictable_leaf_sets(parent)

    def _truncate(self, node: UnifiedTreeNode, take: int, tracker, device_frees):
        """Drop the last ``take`` tokens of a leaf in place.

        What a split and the removal of the tail come to, without the two nodes.
        The leaf gets a new id: whoever still holds the old one unlocked must find
        it gone, not shorter.
        """
        self._tell_prefix_watch(node)
        tree, data = self.tree_core, node.component_data[_FULL]
        keep = len(node.key) - take
        device_frees[_FULL].append(data.value[keep:])
        # A view, until the tensor is mostly dead: cutting off a long leaf page by
        # page must not copy it each time.
        data.value = data.value[:keep]
        if 2 * keep * data.value.element_size() < data.value.untyped_storage().nbytes():
            data.value = data.value.clone()
        node.key = node.key[:keep]
        tracker[_FULL] += take
        tree.component_evictable_size_[_FULL] -= take
        tree._unregister_node(node)
        node.id = type(node).counter
        type(node).counter += 1
        tree._register_node(node)

    def _begin(self, index: Any) -> None:
        index.begin()

    def _evict_device_start(self, request_cnt: int) -> None:
        if self.tree_core.evictable_device_leaves is not self._device_index.leaves:
            self._attach()
        self._evict_device_request_cnt = request_cnt
        self._begin(self._device_index)

    def _evict_device_next_node(
        self, tracker, device_frees, host_frees, cache_actions
    ) -> Optional[int]:
        """Evict in place up to the goal, or return a leaf for the cache to evict.

        Without host, storage or event state a victim needs nothing from the cache
        but the release of its slots, so a whole request is served in one step.
        """
        tree, index = self.tree_core, self._device_index
        quota = self._evict_device_request_cnt
        goal = min(self.eviction_goal or quota, quota)
        in_place = not (
            tree.enable_hicache
            or tree.enable_external_cache_linker
            or tree.kv_events.enabled
        )
        before = freed = tracker[_FULL]
        while freed < (quota if freed == before else goal):
            node = index.pick()
            if node is None:
                break
            take = self._tail_length(node, goal - freed)
            if not (in_place and self._only_on_device(node)):
                if take < len(node.key):
                    self._split_tail(node, take, cache_actions)
                return node.id
            if take < len(node.key):
                self._truncate(node, take, tracker, device_frees)
            else:
                self._drop(node, tracker, device_frees)
            freed = tracker[_FULL]
        pieces = device_frees.get(_FULL, ())
        if len(pieces) > 1:
            # Whole pages each, so one release serves them all.
            device_frees[_FULL] = [torch.cat(pieces)]
        return None

    def _evict_device_end(self) -> None:
        self.eviction_goal = 0
        self._device_index.end()

    def drive_host_eviction(
        self, num_tokens, tracker, device_frees, host_frees, cache_actions
    ) -> None:
        index = self._host_index
        if self.tree_core.evictable_host_leaves is not index.leaves:
            self._attach()
            index = self._host_index
        self._begin(index)
        try:
            while tracker[_FULL] < num_tokens:
                node = index.pick()
                if node is None:
                    break
                take = self._tail_length(node, num_tokens - tracker[_FULL])
                if take < len(node.key):
                    self._split_tail(node, take, cache_actions)
                self.tree_core._evict_host_leaf(
                    node,
                    tracker,
                    device_frees,
                    host_frees,
                    cache_actions=cache_actions,
                )
        finally:
            index.end()
