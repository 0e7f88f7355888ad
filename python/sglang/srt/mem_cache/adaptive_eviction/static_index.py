# SPDX-License-Identifier: Apache-2.0
"""Incremental victim selection for a priority that never falls while resident.

A heap whose entries may be out of date. An entry that is too low comes to the
top early, is corrected there and sinks again, so the top is always the true
minimum. That covers lru, lfu, fifo, filo, priority and slru; a priority that can
fall (mru, tlru) would stay hidden and is refused by the config.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Callable, Optional

from .leaf_set import LeafSet

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

ENTRY_BYTES = 120


class StaticIndex:
    """Heap over ``leaves`` by ``priority(node)``; ties go to the older node id.

    A walk is ``begin``, ``pick`` until None or done, ``end``. A node that was
    picked and not evicted is not picked again in the same walk.
    """

    def __init__(self, priority: Callable[[UnifiedTreeNode], Any]) -> None:
        self._priority = priority
        self._heap: list[tuple[Any, int, UnifiedTreeNode]] = []
        self._last: Optional[UnifiedTreeNode] = None
        self._declined: set[UnifiedTreeNode] = set()
        self.leaves = LeafSet(self._index)

    def __len__(self) -> int:
        return len(self._heap)

    def _index(self, nodes: list[UnifiedTreeNode]) -> None:
        heap, leaves, priority = self._heap, self.leaves, self._priority
        for node in nodes:
            if node in leaves:
                heapq.heappush(heap, (priority(node), node.id, node))
        if len(heap) > 2 * len(leaves) + 64:
            self.reindex()

    def reindex(self) -> None:
        """Rebuild the heap: after a bulk change of priorities, or to drop old entries."""
        self.leaves.drain()
        self._heap = [(self._priority(n), n.id, n) for n in self.leaves]
        heapq.heapify(self._heap)

    def begin(self) -> None:
        self._last = None

    def pick(self) -> Optional[UnifiedTreeNode]:
        """The lowest leaf, or None. It leaves the heap until the walk ends."""
        leaves = self.leaves
        if self._last is not None and self._last in leaves:
            self._declined.add(self._last)
        self._last = None
        self._index(leaves.drain())
        heap = self._heap
        while heap:
            priority, node_id, node = heap[0]
            if node not in leaves or node in self._declined:
                heapq.heappop(heap)
                continue
            now = self._priority(node)
            if now != priority:
                heapq.heapreplace(heap, (now, node_id, node))
                continue
            heapq.heappop(heap)
            self._last = node
            return node
        return None

    def shortened(self, node: UnifiedTreeNode) -> None:
        """The picked leaf lost its tail and stays: it may be picked again."""
        self._last = None
        heapq.heappush(self._heap, (self._priority(node), node.id, node))

    def end(self) -> None:
        """Finish the walk; nodes that were picked and survived are indexed again."""
        if self._last is not None:
            self._declined.add(self._last)
        survivors, self._declined, self._last = self._declined, set(), None
        for node in survivors:
            self.leaves.changed(node)

    def state_bytes(self) -> int:
        return ENTRY_BYTES * len(self._heap)
