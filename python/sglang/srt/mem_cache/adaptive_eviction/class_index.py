# SPDX-License-Identifier: Apache-2.0
"""Incremental victim selection for the learned mode.

Leaves are grouped by what protects them (session references, request priority)
and, inside a group, by class. Within a class all leaves share one age curve,
which rises and then falls, so its minimum is at the oldest or the newest leaf:
two candidates a class, at most 160 comparisons, whatever the number of leaves.

The better end of a class is kept until one of the two ends changes, an age moves
into the next bin, or the curves are learned anew.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Callable, Optional

from .leaf_set import LeafSet
from .reuse_model import BIN_ENDS, BIN_STARTS, IndexRows

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

# An entry, its mirror in the other heap, and their places in both.
ENTRY_BYTES = 260

# (group, class, touch number, touch time) of a leaf's last page.
LeafKey = tuple[tuple, int, int, float]
# [touch number, node id, serial, node, touch time, queue]. The queue is None once
# the entry no longer holds. Entries compare by their first three numbers; lists,
# because the heaps compare them in C.
Entry = list
_SEQ, _NODE, _TIME, _QUEUE = 0, 3, 4, 5
# (value, touch number, node id, node, queue, event time up to which the value
# holds): the better end of one class. Equal values: the older touch goes first.
_Candidate = tuple[float, int, int, "UnifiedTreeNode", "_ClassQueue", float]


class _ClassQueue:
    """Leaves of one class by touch number, seen from both ends.

    Two heaps share the entries; those that no longer hold are dropped when they
    reach an end. ``oldest`` and ``newest`` are the ends behind the class's candidate,
    None while it has none.
    """

    __slots__ = ("cls", "group", "new", "newest", "old", "oldest")

    def __init__(self, group: _Group, cls: int) -> None:
        self.group = group
        self.cls = cls
        self.old: list[Entry] = []
        self.new: list[tuple[int, int, Entry]] = []
        self.oldest: Optional[Entry] = None
        self.newest: Optional[Entry] = None

    def outdate(self) -> None:
        """The candidate may be wrong: drop it, to be found again when asked for."""
        if self.oldest is not None:
            self.oldest = self.newest = None
            del self.group.candidates[self.cls]
            self.group.outdated.append(self)


class _Group:
    """Queues of one protection level, and the candidates known to be right."""

    __slots__ = ("candidates", "outdated", "queues")

    def __init__(self) -> None:
        self.queues: dict[int, _ClassQueue] = {}
        self.candidates: dict[int, _Candidate] = {}
        self.outdated: list[_ClassQueue] = []


class ClassIndex:
    """Index over ``leaves``. A walk is ``begin``, ``pick`` until None, ``end``.

    Args:
        key_of: current key of a leaf.
    """

    def __init__(self, key_of: Callable[[UnifiedTreeNode], LeafKey]) -> None:
        self._key_of = key_of
        self._groups: dict[tuple, _Group] = {}
        self._order: list[tuple] = []
        self._entries = self._serial = 0
        self._now = 0.0
        self._rows: Optional[IndexRows] = None
        self._last: Optional[UnifiedTreeNode] = None
        self._declined: set[UnifiedTreeNode] = set()
        self.leaves = LeafSet(self._index, self._leave)

    def __len__(self) -> int:
        return self._entries

    # ---- upkeep ----

    def _index(self, nodes: list[UnifiedTreeNode]) -> None:
        leaves, declined = self.leaves, self._declined
        for node in nodes:
            if node in leaves and node not in declined:
                self._leave(node)
                self._enter(node)
        if self._entries > 4 * len(leaves) + 256:
            self._compact()

    def _enter(self, node: UnifiedTreeNode) -> None:
        group_key, cls, seq, time = self._key_of(node)
        group = self._groups.get(group_key)
        if group is None:
            group = self._groups[group_key] = _Group()
            insort(self._order, group_key)
        queue = group.queues.get(cls)
        if queue is None:
            queue = group.queues[cls] = _ClassQueue(group, cls)
            group.outdated.append(queue)
        elif queue.oldest is not None and not (
            queue.oldest[_SEQ] < seq < queue.newest[_SEQ]
        ):
            queue.outdate()
        self._serial += 1
        node_id = node.id
        entry = [seq, node_id, self._serial, node, time, queue]
        node.reuse_record.entry = entry
        heapq.heappush(queue.old, entry)
        heapq.heappush(queue.new, (-seq, -node_id, entry))
        self._entries += 1

    def _leave(self, node: UnifiedTreeNode) -> None:
        """The node's entry no longer holds."""
        record = node.reuse_record
        if record is None or record.entry is None:
            return
        entry, record.entry = record.entry, None
        queue = entry[_QUEUE]
        # The entry stays in the heaps for a while, and must not keep the node alive.
        entry[_QUEUE] = entry[_NODE] = None
        if entry is queue.oldest or entry is queue.newest:
            queue.outdate()

    def _compact(self) -> None:
        """Drop all entries that no longer hold."""
        self._groups.clear()
        self._order.clear()
        self._entries = 0
        self.leaves.drain()
        for node in self.leaves:
            if node not in self._declined:
                self._enter(node)

    # ---- walk ----

    def begin(self, now: float, rows: IndexRows) -> None:
        """Start a walk at event time ``now`` with the values ``rows[class][bin]``."""
        self._last = None
        if rows is not self._rows:
            self._rows = rows
            for group in self._groups.values():
                for queue in group.queues.values():
                    queue.outdate()
        elif now != self._now:
            for group in self._groups.values():
                for candidate in list(group.candidates.values()):
                    if candidate[5] <= now:
                        candidate[4].outdate()
        self._now = now

    def pick(self) -> Optional[UnifiedTreeNode]:
        """The leaf with the lowest value in the least protected group, or None.

        The caller evicts it, or cuts off and evicts its tail, before the next
        pick; a node that is still a leaf then is passed over until the walk ends.
        """
        last, self._last = self._last, None
        if last is not None and last in self.leaves:
            self._declined.add(last)
            self._leave(last)
        added = self.leaves.drain()
        if added:
            self._index(added)
        while self._order:
            group = self._groups[self._order[0]]
            if group.outdated:
                outdated, group.outdated = group.outdated, []
                for queue in outdated:
                    self._refresh(queue)
            if group.candidates:
                self._last = min(group.candidates.values())[3]
                return self._last
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

    def _refresh(self, queue: _ClassQueue) -> None:
        """Find the better end of one class, or drop the class if it is empty."""
        old, new, group, cls = queue.old, queue.new, queue.group, queue.cls
        while old and old[0][_QUEUE] is None:
            heapq.heappop(old)
            self._entries -= 1
        if not old:
            del group.queues[cls]
            return
        while new[0][2][_QUEUE] is None:
            heapq.heappop(new)
        best = queue.oldest = old[0]
        newest = queue.newest = new[0][2]
        row, now, time = self._rows[cls], self._now, best[_TIME]
        age_bin = bisect_right(BIN_STARTS, now - time) - 1 if now > time else 0
        value, until = row[age_bin], time + BIN_ENDS[age_bin]
        if newest is not best:
            time = newest[_TIME]
            age_bin = bisect_right(BIN_STARTS, now - time) - 1 if now > time else 0
            if row[age_bin] < value:
                value, best = row[age_bin], newest
            else:
                # It cannot win before the bin with a lower value.
                while time + BIN_ENDS[age_bin] < until and row[age_bin + 1] >= value:
                    age_bin += 1
            if time + BIN_ENDS[age_bin] < until:
                until = time + BIN_ENDS[age_bin]
        group.candidates[cls] = (value, best[_SEQ], best[1], best[_NODE], queue, until)

    def end(self) -> None:
        """Finish the walk; nodes that were picked and survived are indexed again."""
        if self._last is not None:
            self._declined.add(self._last)
            self._last = None
        if self._declined:
            survivors, self._declined = self._declined, set()
            for node in survivors:
                self.leaves.changed(node)

    def state_bytes(self) -> int:
        return ENTRY_BYTES * self._entries
