# SPDX-License-Identifier: Apache-2.0
"""A set of evictable leaves that remembers which members are new.

The tree core changes its leaf sets in many places, some of them directly, so the
index watches the set and not the callers. Only additions are recorded: an index
notices a departed leaf when it meets it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

# Additions are handed over in batches of this size, outside eviction.
_BATCH = 256


class LeafSet(set):
    """``set`` of tree nodes with a list of additions not yet indexed.

    The tree core uses ``add``, ``discard`` and ``in``; other ways to add are
    refused, because the index would not see them.
    """

    def __init__(self, on_batch: Callable[[list[UnifiedTreeNode]], None]) -> None:
        super().__init__()
        self._on_batch = on_batch
        self._added: list[UnifiedTreeNode] = []

    def add(self, node: UnifiedTreeNode) -> None:
        if node not in self:
            set.add(self, node)
            self._added.append(node)
            if len(self._added) >= _BATCH:
                self._on_batch(self.drain())

    def changed(self, node: UnifiedTreeNode) -> None:
        """Report that the order of a member may have changed."""
        if node in self:
            self._added.append(node)
            if len(self._added) >= _BATCH:
                self._on_batch(self.drain())

    def drain(self) -> list[UnifiedTreeNode]:
        """Hand over the additions; some may have left the set again."""
        added, self._added = self._added, []
        return added

    def _unseen(self, *_: object) -> None:
        raise TypeError("add nodes to a LeafSet one by one, with add()")

    update = __ior__ = __ixor__ = symmetric_difference_update = _unseen
