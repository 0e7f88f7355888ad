# SPDX-License-Identifier: Apache-2.0
"""A set of evictable leaves that tells an index what enters and what leaves.

The tree core changes its leaf sets in many places, some of them directly, so the
index watches the set and not the callers. A leaf enters and leaves several times
while a request is admitted; additions are therefore collected and handed over at
the next eviction, departures at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Optional

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

# Additions are handed over in batches of this size, also outside eviction.
_BATCH = 256


class LeafSet(set):
    """``set`` of tree nodes. The tree core uses ``add``, ``discard`` and ``in``.

    Other ways to change it are refused, because the index would not see them.

    Args:
        on_batch: receives added nodes; some may have left again.
        on_leave: receives each node that leaves, or None.
    """

    def __init__(
        self,
        on_batch: Callable[[list[UnifiedTreeNode]], None],
        on_leave: Optional[Callable[[UnifiedTreeNode], None]] = None,
    ) -> None:
        super().__init__()
        self._on_batch = on_batch
        self._on_leave = on_leave
        # A dict for its order: a leaf is handed over once, however often it came.
        self._added: dict[UnifiedTreeNode, None] = {}

    def add(self, node: UnifiedTreeNode) -> None:
        if node not in self:
            # Before this one: a new node has no record yet.
            if len(self._added) >= _BATCH:
                self._on_batch(self.drain())
            set.add(self, node)
            self._added[node] = None

    def discard(self, node: UnifiedTreeNode) -> None:
        if node in self:
            set.discard(self, node)
            if self._on_leave is not None:
                self._on_leave(node)

    def changed(self, node: UnifiedTreeNode) -> None:
        """Report that the order of a member may have changed."""
        if node in self:
            self._added[node] = None
            if len(self._added) >= _BATCH:
                self._on_batch(self.drain())

    def drain(self) -> list[UnifiedTreeNode]:
        """Hand over the additions since the last time, in their order."""
        added = list(self._added)
        self._added.clear()
        return added

    def _unseen(self, *_: object) -> None:
        raise TypeError("change a LeafSet one node at a time, with add and discard")

    update = difference_update = intersection_update = _unseen
    symmetric_difference_update = pop = remove = clear = _unseen
    __ior__ = __iand__ = __isub__ = __ixor__ = _unseen
