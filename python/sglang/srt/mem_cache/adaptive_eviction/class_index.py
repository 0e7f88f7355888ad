# SPDX-License-Identifier: Apache-2.0
"""Incremental victim selection for the learned mode.

Leaves are grouped by what protects them (session references, request priority)
and, inside a group, by class. Within a class all leaves share one age curve,
which rises and then falls, so its minimum is at the oldest or the newest leaf:
two candidates a class, at most 160 comparisons, whatever the number of leaves.

The better end of a class is kept until one of its leaves changes, an age moves
into the next bin, or the curves are learned anew.
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


# The better end of one class: (value, touch number, node id, class, node, the
# touch times of both ends and the ages up to which their values hold). Candidates
# compare by value, then the older touch. A plain tuple: many are made.
_Candidate = tuple[float, int, int, int, "UnifiedTreeNode", float, float, float, float]
_CLASS, _NODE = 3, 4


class _ClassQueue:
    """Leaves of one class by touch number, seen from both ends.

    Two heaps share the leaves; entries that no longer hold are dropped when they
    reach an end.
    """

    __slots__ = ("new", "old")

    def __init__(self) -> None:
        self.old: list[_Entry] = []
        self.new: list[_Entry] = []


class _Group:
    """Queues of one protection level, and the candidates known to be right."""

    __slots__ = ("candidates", "queues")

    def __init__(self) -> None:
        self.queues: dict[int, _ClassQueue] = {}
        self.candidates: dict[int, _Candidate] = {}


class ClassIndex:
    """Index over ``leaves``. A walk is ``begin``, ``pick`` until None, ``end``.

    Args:
        key_of: current key of a leaf.
        value_of: ``(class, age)`` to the value that is minimised, and the age
            from which it is another one.
    """

    def __init__(
        self,
        key_of: Callable[[UnifiedTreeNode], LeafKey],
        value_of: Callable[[int, float], tuple[float, float]],
    ) -> None:
        self._key_of = key_of
        self._value_of = value_of
        self._groups: dict[tuple, _Group] = {}
        self._order: list[tuple] = []
        self._entries = 0
        self._now = 0.0
        self._version = -1
        self._last: Optional[_Candidate] = None
        self._declined: set[UnifiedTreeNode] = set()
        self.leaves = LeafSet(self._index, self._leave)

    def __len__(self) -> int:
        return self._entries

    # ---- upkeep ----

    def _index(self, nodes: list[UnifiedTreeNode]) -> None:
        leaves, declined = self.leaves, self._declined
        for node in nodes:
            if node not in leaves or node in declined:
                continue
            self._leave(node)
            # A new object even if equal: it takes over from older entries.
            key = self._key_of(node)
            node.reuse_record.key = key
            group, queue = self._queue(key)
            heapq.heappush(queue.old, (key[2], node.id, node, key))
            heapq.heappush(queue.new, (-key[2], -node.id, node, key))
            self._entries += 1
            group.candidates.pop(key[1], None)
        if self._entries > 4 * len(leaves) + 256:
            self._compact()

    def _leave(self, node: UnifiedTreeNode) -> None:
        """The node's entry no longer holds."""
        record = node.reuse_record
        key = record.key if record is not None else None
        if key is not None:
            record.key = None
            group = self._groups.get(key[0])
            if group is not None:
                group.candidates.pop(key[1], None)

    def _queue(self, key: LeafKey) -> tuple[_Group, _ClassQueue]:
        group = self._groups.get(key[0])
        if group is None:
            group = self._groups[key[0]] = _Group()
            insort(self._order, key[0])
        queue = group.queues.get(key[1])
        if queue is None:
            queue = group.queues[key[1]] = _ClassQueue()
        return group, queue

    def _compact(self) -> None:
        """Drop all entries that no longer hold."""
        self._groups.clear()
        self._order.clear()
        self._entries = 0
        self.leaves.drain()
        for node in self.leaves:
            if node not in self._declined:
                key = self._key_of(node)
                node.reuse_record.key = key
                _, queue = self._queue(key)
                queue.old.append((key[2], node.id, node, key))
                queue.new.append((-key[2], -node.id, node, key))
                self._entries += 1
        for group in self._groups.values():
            for queue in group.queues.values():
                heapq.heapify(queue.old)
                heapq.heapify(queue.new)

    # ---- walk ----

    def begin(self, now: float, version: int) -> None:
        """Start a walk at event time ``now`` with curves of ``version``."""
        self._last = None
        if version != self._version:
            self._version = version
            for group in self._groups.values():
                group.candidates.clear()
        elif now != self._now:
            for group in self._groups.values():
                passed = [
                    c[_CLASS]
                    for c in group.candidates.values()
                    if now - c[5] >= c[6] or now - c[7] >= c[8]
                ]
                for cls in passed:
                    del group.candidates[cls]
        self._now = now

    def pick(self) -> Optional[UnifiedTreeNode]:
        """The leaf with the lowest value in the least protected group, or None.

        The caller evicts it, or cuts off and evicts its tail, before the next
        pick; a node that is still a leaf then is passed over until the walk ends.
        """
        last, self._last = self._last, None
        if last is not None and last[_NODE] in self.leaves:
            self._declined.add(last[_NODE])
            self._leave(last[_NODE])
        self._index(self.leaves.drain())
        while self._order:
            group = self._groups[self._order[0]]
            candidates, queues = group.candidates, group.queues
            if len(candidates) < len(queues):
                for cls in [c for c in queues if c not in candidates]:
                    self._refresh(group, cls)
            if candidates:
                self._last = min(candidates.values())
                return self._last[_NODE]
            del self._groups[self._order.pop(0)]
        return None

    def shortened(self, node: UnifiedTreeNode, changed: bool) -> None:
        """The picked leaf lost its tail and stays: it may be picked again.

        ``changed`` says that its new last page has another key.
        """
        self._last = None
        if changed:
            self._leave(node)
            self.leaves.changed(node)

    def _refresh(self, group: _Group, cls: int) -> None:
        """Find the better end of one class, or drop the class if it is empty."""
        queue = group.queues[cls]
        old, new = queue.old, queue.new
        while old:
            seq, node_id, node, key = old[0]
            record = node.reuse_record
            if record is not None and record.key is key:
                break
            heapq.heappop(old)
            self._entries -= 1
        else:
            del group.queues[cls]
            return
        while True:
            new_seq, new_id, other, new_key = new[0]
            record = other.reuse_record
            if record is not None and record.key is new_key:
                break
            heapq.heappop(new)
        time = key[3]
        value, limit = self._value_of(cls, self._now - time)
        if other is node:
            best = (value, seq, node_id, cls, node, time, limit, time, limit)
        else:
            new_time = new_key[3]
            new_value, new_limit = self._value_of(cls, self._now - new_time)
            ends = (time, limit, new_time, new_limit)
            if new_value < value:
                best = (new_value, -new_seq, -new_id, cls, other, *ends)
            else:
                best = (value, seq, node_id, cls, node, *ends)
        group.candidates[cls] = best

    def end(self) -> None:
        """Finish the walk; nodes that were picked and survived are indexed again."""
        if self._last is not None:
            self._declined.add(self._last[_NODE])
        survivors, self._declined, self._last = self._declined, set(), None
        for node in survivors:
            self.leaves.changed(node)

    def state_bytes(self) -> int:
        return 2 * ENTRY_BYTES * self._entries
