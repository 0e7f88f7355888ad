# SPDX-License-Identifier: Apache-2.0
"""S3-FIFO: three static FIFO queues.

J. Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP 2023.

A new object enters the small queue, or the main one if the ghost queue remembers
it. When the small queue holds its tenth of the space, its oldest object moves to
the main queue if it was used more than once, else it is evicted and remembered as
a ghost. Otherwise the oldest object of the main queue goes, unless it was used:
then it starts again with one use less.

Here the objects are tree nodes, only leaves can be chosen, and a split leaves both
parts at the node's place. Ghosts are blocks, known by a hash chained over the prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Iterable, Sequence

from .base import ReferencePolicy

SMALL_SHARE = 0.1
MAX_USES = 3


@dataclass(slots=True)
class _Record:
    main: bool
    uses: int
    place: int
    hashes: list[int]


class S3FIFO(ReferencePolicy):
    """Quick demotion of nodes that are not used again soon."""

    def __init__(self, capacity: int, block_tokens: int):
        super().__init__(capacity, block_tokens)
        self._records: dict[int, _Record] = {}
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        self._places = 0
        self._small_tokens = 0
        self._small_is_full = False

    def begin_eviction(self, leaves: Iterable[Any]) -> None:
        # Once a call, since the core's heap keeps the keys for the whole call.
        self._small_is_full = self._small_tokens >= SMALL_SHARE * self.capacity

    def get_priority(self, node: Any) -> tuple[bool, int]:
        record = self._records[node.id]
        return record.main == self._small_is_full, record.place

    def reconsider(self, node: Any) -> bool:
        record = self._records[node.id]
        if record.main:
            if record.uses == 0:
                return False
            record.uses -= 1
        else:
            if record.uses <= 1:
                return False
            record.main = True
            record.uses = 0
            self._small_tokens -= len(record.hashes)
        record.place = self._next_place()
        return True

    def on_access(self, path: Sequence[Any]) -> None:
        for node in path:
            record = self._records[node.id]
            record.uses = min(MAX_USES, record.uses + 1)

    def on_insert(self, node: Any) -> None:
        parent = self._records.get(node.parent.id)
        chain = parent.hashes[-1] if parent is not None else 0
        hashes = []
        for token in node.key:
            chain = hash((chain, token))
            hashes.append(chain)
        main = hashes[0] in self._ghosts
        self._records[node.id] = _Record(main, 0, self._next_place(), hashes)
        if not main:
            self._small_tokens += len(hashes)

    def on_split(self, upper: Any, lower: Any) -> None:
        record = self._records[lower.id]
        cut = len(upper.key)
        self._records[upper.id] = _Record(
            record.main, record.uses, record.place, record.hashes[:cut]
        )
        record.hashes = record.hashes[cut:]

    def on_evict(self, node: Any) -> None:
        record = self._records.pop(node.id)
        if record.main:
            return
        self._small_tokens -= len(record.hashes)
        for block in record.hashes:
            self._ghosts[block] = None
        while len(self._ghosts) > (1 - SMALL_SHARE) * self.capacity:
            self._ghosts.popitem(last=False)

    def _next_place(self) -> int:
        self._places += 1
        return self._places
