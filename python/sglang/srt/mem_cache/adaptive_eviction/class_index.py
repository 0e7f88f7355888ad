# SPDX-License-Identifier: Apache-2.0
"""Incremental victim selection for the learned mode.

Leaves are grouped by what protects them (session references, request priority)
and, inside a group, by class. Within a class all leaves share one age curve,
which rises and then falls, so its minimum is at the oldest or the newest leaf:
two candidates a class, at most 160 comparisons, whatever the number of leaves.
"""

from __future__ import annotations

import heapq
from bisect import insort
from typing import TYPE_CHECKING, Callable, Optional

from .leaf_set import LeafSet

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

ENTRY_BYTES = 112

# (group, class, touch number, touch time) of a leaf's last page.
LeafKey = tuple[tuple, int, int, float]
# (touch number, node id, node, key), both numbers negative in the other heap. An
# entry holds while the key is the very object that the node's record carries.
_Entry = tuple[int, int, "UnifiedTreeNode", LeafKey]
# (value, touch number, node id, class, node, key)
_Candidate = tuple[float, int, int, int, "UnifiedTreeNode", LeafKey]


class _ClassQueue:
    """Leaves of one class by touch number, seen from both ends.

    Two heaps share the leaves; entries that no longer hold are dropped when they
    reach an end.
    """

    __slots__ = ("old", "new")

    def __init__(self) -> None:
        self.old: list[_Entry] = []
        self.new: list[_Entry] = []


class ClassIndex:
    """Index over ``leaves``. A walk is ``begin``, ``pick`` until None, ``end``.

    Args:
        key_of: current key of a leaf.
        value_of: ``(class, touch time)`` to the value that is minimised;
            constant during a walk.
    """

    def __init__(
        self,
        key_of: Callable[[UnifiedTreeNode], LeafKey],
        value_of: Callable[[int, float], float],
    ) -> None:
        self._key_of = key_of
        self._value_of = value_of
        self._groups: dict[tuple, dict[int, _ClassQueue]] = {}
        self._order: list[tuple] = []
        self._entries = 0
        # Walk state: candidates of one group by class, and what was picked.
        self._group: Optional[tuple] = None
        self._candidates: dict[int, _Candidate] = {}
        self._last: Optional[_Candidate] = None
        self._declined: set[UnifiedTreeNode] = set()
        self.leaves = LeafSet(self._index)

    def __len__(self) -> int:
        return self._entries

    # ---- upkeep ----

    def _index(self, nodes: list[UnifiedTreeNode]) -> None:
        leaves, current = self.leaves, self._group
        for node in nodes:
            if node not in leaves or node in self._declined:
                continue
            # A new object even if equal: it takes over from older entries.
            key = self._key_of(node)
            node.reuse_record.key = key
            group, cls, seq, _ = key
            queue = self._queue(group, cls)
            heapq.heappush(queue.old, (seq, node.id, node, key))
            heapq.heappush(queue.new, (-seq, -node.id, node, key))
            self._entries += 1
            if group == current:
                self._candidates.pop(cls, None)
        if self._entries > 4 * len(leaves) + 256:
            self._compact()

    def _queue(self, group: tuple, cls: int) -> _ClassQueue:
        queues = self._groups.get(group)
        if queues is None:
            queues = self._groups[group] = {}
            insort(self._order, group)
        queue = queues.get(cls)
        if queue is None:
            queue = queues[cls] = _ClassQueue()
        return queue

    def _compact(self) -> None:
        """Drop all entries that no longer hold."""
        self._groups.clear()
        self._order.clear()
        self._group = None
        self.leaves.drain()
        self._entries = 0
        for node in self.leaves:
            if node not in self._declined:
                key = self._key_of(node)
                node.reuse_record.key = key
                queue = self._queue(key[0], key[1])
                queue.old.append((key[2], node.id, node, key))
                queue.new.append((-key[2], -node.id, node, key))
                self._entries += 1
        for queues in self._groups.values():
            for queue in queues.values():
                heapq.heapify(queue.old)
                heapq.heapify(queue.new)

    def _holds(self, node: UnifiedTreeNode, key: LeafKey) -> bool:
        return (
            node in self.leaves
            and node.reuse_record.key is key
            and node not in self._declined
        )

    # ---- walk ----

    def begin(self) -> None:
        self._group = self._last = None

    def pick(self) -> Optional[UnifiedTreeNode]:
        """The leaf with the lowest value in the least protected group, or None.

        The caller evicts it, or cuts off and evicts its tail, before the next
        pick; a node that is still a leaf then is passed over until the walk ends.
        """
        last, self._last = self._last, None
        if last is not None:
            self._candidates.pop(last[3], None)
            if last[4] in self.leaves:
                self._declined.add(last[4])
        self._index(self.leaves.drain())
        while self._order:
            group = self._order[0]
            if group != self._group:
                self._group = group
                self._candidates = {}
            candidates, queues = self._candidates, self._groups[group]
            if len(candidates) < len(queues):
                for cls in list(queues):
                    if cls not in candidates:
                        self._refresh(group, cls)
            if not candidates:
                del self._groups[group]
                del self._order[0]
                continue
            best = min(candidates.values())
            if self._holds(best[4], best[5]):
                self._last = best
                return best[4]
            del candidates[best[3]]
        return None

    def _refresh(self, group: tuple, cls: int) -> None:
        """Find the better end of one class, or drop the class if it is empty."""
        queues = self._groups[group]
        queue = queues[cls]
        old, new, holds = queue.old, queue.new, self._holds
        while old and not holds(old[0][2], old[0][3]):
            heapq.heappop(old)
            self._entries -= 1
        if not old:
            del queues[cls]
            return
        while not holds(new[0][2], new[0][3]):
            heapq.heappop(new)
        seq, node_id, node, key = old[0]
        best = (self._value_of(cls, key[3]), seq, node_id, cls, node, key)
        seq, node_id, other, key = new[0]
        if other is not node:
            value = self._value_of(cls, key[3])
            if value < best[0]:
                best = (value, -seq, -node_id, cls, other, key)
        self._candidates[cls] = best

    def end(self) -> None:
        """Finish the walk; nodes that were picked and survived are indexed again."""
        if self._last is not None:
            self._declined.add(self._last[4])
        survivors, self._declined = self._declined, set()
        self._group = self._last = None
        for node in survivors:
            if node in self.leaves:
                node.reuse_record.key = None
                self.leaves.changed(node)

    def state_bytes(self) -> int:
        return 2 * ENTRY_BYTES * self._entries
