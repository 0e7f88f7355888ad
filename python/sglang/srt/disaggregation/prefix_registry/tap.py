# SPDX-License-Identifier: Apache-2.0
"""Where a tree core tells what it stored and removed, on the scheduler's thread.

Upstream's events carry 8 bytes of a page's hash and take a Python object a page. The
tap notes the tree's own hash list of a node instead (Python core), or the core's event
as it is (Rust core); the publisher's thread makes digests of them.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.disaggregation.prefix_registry.wire import TIERS

# First field of the events that the Python core's nodes give; the Rust core's own
# events begin with names that are none of these.
NODE_STORED = "node_stored"
NODE_REMOVED = "node_removed"
CLEARED = "all_blocks_cleared"


class TreeTap:
    """Collects the changes of one tree until ``drain``.

    Args:
        page_size: tokens a page.
        exclusive: nobody else takes the tree's events, so upstream need not make them.
    """

    def __init__(self, page_size: int, *, exclusive: bool):
        self._page_size = page_size
        self.exclusive = exclusive
        self._events: list[tuple] = []
        self._blocks = 0

    def node_stored(self, node: Any, medium: Any) -> bool:
        """Python core: ``medium`` now holds ``node``. True: make no upstream event."""
        return self._node(NODE_STORED, node, medium)

    def node_removed(self, node: Any, medium: Any) -> bool:
        """Python core: ``medium`` no longer holds ``node``. True: no upstream event."""
        return self._node(NODE_REMOVED, node, medium)

    def _node(self, kind: str, node: Any, medium: Any) -> bool:
        if node.hash_value is None:
            # Upstream's recorder does this for its own events; a page is hashed once.
            from sglang.srt.mem_cache.utils import compute_node_hash_values

            node.hash_value = compute_node_hash_values(node, self._page_size)
        # The list is never changed in place: a split gives both halves new ones.
        self._events.append((kind, TIERS[medium.value], node.hash_value))
        self._blocks += len(node.hash_value)
        return self.exclusive

    def cleared(self) -> bool:
        """Python core: the tree was emptied. True: make no upstream event."""
        self._events.append((CLEARED,))
        return self.exclusive

    def take_tagged(self, recorder: Any) -> list:
        """Rust core: in place of its recorder's ``take``; returns upstream's events."""
        tagged = recorder._binding.take_events()
        self._events.extend(tagged)
        self._blocks += sum(len(event[1]) for event in tagged if len(event) > 1)
        if self.exclusive:
            return []
        from sglang.srt.mem_cache.rust_tree_core.adapter import _kv_event_from_tagged

        return [
            _kv_event_from_tagged(event, recorder._lora_names, recorder._dynamo_format)
            for event in tagged
        ]

    def drain(self) -> tuple[list[tuple], int]:
        """The events since the last call, in order, and how many blocks they name."""
        events, blocks = self._events, self._blocks
        self._events, self._blocks = [], 0
        return events, blocks
