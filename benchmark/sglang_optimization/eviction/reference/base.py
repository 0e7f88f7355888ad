# SPDX-License-Identifier: Apache-2.0
"""What a reference policy implements, and the component that calls it."""

from __future__ import annotations

import heapq
import sys
from abc import abstractmethod
from typing import Any, Iterable, Sequence

from sglang.srt.mem_cache.evict_policy import EvictionStrategy
from sglang.srt.mem_cache.unified_cache.components.base import EvictLayer
from sglang.srt.mem_cache.unified_cache.components.full import FullComponent

# FLOPs of one token in a transformer layer of width h at position d: 24 h^2 for the
# projections and the MLP, 4 h d for attention. So position d costs 1 + d / (6 h)
# times what position 0 costs. 4096 is the width of 7B and 8B models.
HIDDEN_SIZE = 4096


def relative_prefill_cost(start_token: int, end_token: int) -> float:
    """Mean cost to recompute a token of [start, end), relative to the first token."""
    return 1 + (start_token + end_token) / 2 / (6 * HIDDEN_SIZE)


class ReferencePolicy(EvictionStrategy):
    """Ranks the evictable leaves of a tree; the lowest priority goes first.

    Nodes are the core's ``UnifiedTreeNode``. A policy may read them and must not
    change them. All methods but ``get_priority`` default to nothing.

    Args of ``__init__``:
        capacity: pool size in tree tokens.
        block_tokens: real tokens that one tree token stands for.
    """

    def __init__(self, capacity: int, block_tokens: int):
        self.capacity = capacity
        self.block_tokens = block_tokens

    @abstractmethod
    def get_priority(self, node: Any) -> Any:
        """Sort key of a leaf; asked once a leaf and eviction call."""

    def on_access(self, path: Sequence[Any]) -> None:
        """A request matched the nodes of ``path``, root side first."""

    def on_insert(self, node: Any) -> None:
        """``node`` is a new leaf."""

    def on_split(self, upper: Any, lower: Any) -> None:
        """``upper`` is new and took the front of the key of ``lower``."""

    def on_evict(self, node: Any) -> None:
        """``node`` leaves the cache."""

    def begin_eviction(self, leaves: Iterable[Any]) -> None:
        """An eviction call starts; priorities are read after this."""

    def reconsider(self, node: Any) -> bool:
        """Whether the chosen ``node`` stays after all, with a new priority."""
        return False

    def state_bytes(self) -> int:
        """Memory of the policy's own records."""
        return deep_size(self.__dict__)


class ObservedFullComponent(FullComponent):
    """Reports tree events to a ``ReferencePolicy`` set as the core's strategy."""

    _evict_device_last_node: Any

    @property
    def policy(self) -> ReferencePolicy:
        """The policy of this cache."""
        policy = self.tree_core.eviction_strategy
        assert isinstance(policy, ReferencePolicy), "set the strategy before use"
        return policy

    def commit_insert_component_data(
        self, node: Any, is_new_leaf: bool, *args: Any, **kwargs: Any
    ) -> None:
        super().commit_insert_component_data(node, is_new_leaf, *args, **kwargs)
        if is_new_leaf:
            self.policy.on_insert(node)

    def redistribute_on_node_split(self, new_parent: Any, child: Any) -> None:
        super().redistribute_on_node_split(new_parent=new_parent, child=child)
        self.policy.on_split(new_parent, child)

    def evict_component(
        self,
        node: Any,
        device_frees: Any,
        host_frees: Any,
        cache_actions: Any,
        target: EvictLayer = EvictLayer.DEVICE,
    ) -> tuple[int, int]:
        self.policy.on_evict(node)
        freed: tuple[int, int] = super().evict_component(
            node, device_frees, host_frees, cache_actions, target
        )
        return freed

    def _evict_device_start(self, request_cnt: int) -> None:
        self.policy.begin_eviction(self.tree_core.evictable_device_leaves)
        super()._evict_device_start(request_cnt)

    def _evict_device_next_node(self, *args: Any, **kwargs: Any) -> Any:
        while True:
            node_id = super()._evict_device_next_node(*args, **kwargs)
            if node_id is None:
                return None
            node = self._evict_device_last_node
            if not self.policy.reconsider(node):
                return node_id
            # It goes back under its new priority; nothing was evicted.
            self._evict_device_last_node = None
            heapq.heappush(self._evict_device_heap, (self.policy.get_priority(node), node))


def start_of(node: Any) -> int:
    """Position of the node's first tree token."""
    start = 0
    node = node.parent
    while node is not None:
        start += len(node.key)
        node = node.parent
    return start


def deep_size(value: Any, seen: set[int] | None = None) -> int:
    """Bytes of a container and what only it holds; tree nodes are not followed."""
    seen = set() if seen is None else seen
    if id(value) in seen or hasattr(value, "component_data"):
        return 0
    seen.add(id(value))
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        size += sum(deep_size(k, seen) + deep_size(v, seen) for k, v in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        size += sum(deep_size(item, seen) for item in value)
    elif hasattr(value, "__slots__"):
        size += sum(
            deep_size(getattr(value, name), seen)
            for name in value.__slots__
            if hasattr(value, name)
        )
    return size
