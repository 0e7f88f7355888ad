# SPDX-License-Identifier: Apache-2.0
"""Least Hit Density over the leaves of the tree.

N. Beckmann, H. Chen, A. Cidon, "LHD: Improving Cache Hit Rate by Maximizing Hit
Density", NSDI 2018.

An object's hit density is its expected hits by the space-time it will take until
its next hit or its eviction, estimated from the ages at which hits and evictions
of its class happened. The object with the lowest density is evicted. Classes are by
the sum of the last two ages at a hit, in powers of two.

Differences: all leaves are ranked instead of a sample, so the paper's explorers are
not needed; ages count requested blocks; a node's blocks are the weight of its events.
Density a byte makes the size of a node cancel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import numpy as np

from .base import ReferencePolicy

CLASSES = 16
AGES = 512
DECAY = 0.9
# Ages get coarser when more than this share of events falls beyond the last bin.
OVERFLOW = 0.01


@dataclass(slots=True)
class _Record:
    touched: int
    last_age: int
    previous_age: int


class LHD(ReferencePolicy):
    """Ranks leaves by estimated hit density; younger leaf first stays on a tie."""

    def __init__(self, capacity: int, block_tokens: int):
        super().__init__(capacity, block_tokens)
        self._records: dict[int, _Record] = {}
        self._clock = 0
        self._width = 1
        self._hits = np.zeros((CLASSES, AGES))
        self._evictions = np.zeros((CLASSES, AGES))
        # Before anything is known, older is worse.
        self._density = np.tile(1.0 / np.arange(1, AGES + 1), (CLASSES, 1))
        self._events_since_update = 0

    def get_priority(self, node: Any) -> tuple[float, int]:
        record = self._records[node.id]
        density = self._density[_class(record), self._age_bin(record)]
        return float(density), record.touched

    def on_access(self, path: Sequence[Any]) -> None:
        self._clock += sum(len(node.key) for node in path)
        for node in path:
            record = self._records[node.id]
            self._count(self._hits, record, len(node.key))
            record.previous_age = record.last_age
            record.last_age = max(1, self._clock - record.touched)
            record.touched = self._clock

    def on_insert(self, node: Any) -> None:
        self._clock += len(node.key)
        self._records[node.id] = _Record(self._clock, 0, 0)

    def on_split(self, upper: Any, lower: Any) -> None:
        record = self._records[lower.id]
        self._records[upper.id] = _Record(record.touched, record.last_age, record.previous_age)

    def on_evict(self, node: Any) -> None:
        self._count(self._evictions, self._records.pop(node.id), len(node.key))

    def _age_bin(self, record: _Record) -> int:
        return min(AGES - 1, (self._clock - record.touched) // self._width)

    def _count(self, events: np.ndarray, record: _Record, weight: int) -> None:
        events[_class(record), self._age_bin(record)] += weight
        self._events_since_update += weight
        if self._events_since_update >= self.capacity:
            self._events_since_update = 0
            self._update()

    def _update(self) -> None:
        """Recompute densities, then fade the events (an exponential average)."""
        beyond = self._hits[:, -1].sum() + self._evictions[:, -1].sum()
        if beyond > OVERFLOW * (self._hits.sum() + self._evictions.sum()):
            self._width *= 2
            self._hits = _coarser(self._hits)
            self._evictions = _coarser(self._evictions)
        # Sums from each age to the oldest: hits to come, and the time that the
        # events to come are still away, in bins.
        events = self._hits + self._evictions
        hits_to_come = self._hits[:, ::-1].cumsum(axis=1)[:, ::-1]
        events_to_come = events[:, ::-1].cumsum(axis=1)[:, ::-1]
        lifetime = events_to_come[:, ::-1].cumsum(axis=1)[:, ::-1]
        known = lifetime > 0
        self._density[known] = hits_to_come[known] / lifetime[known]
        self._hits *= DECAY
        self._evictions *= DECAY


def _class(record: _Record) -> int:
    return min(CLASSES - 1, (record.last_age + record.previous_age).bit_length())


def _coarser(events: np.ndarray) -> np.ndarray:
    merged = np.zeros_like(events)
    merged[:, : AGES // 2] = events[:, 0::2] + events[:, 1::2]
    # What was beyond the last bin stays beyond it.
    merged[:, -1], merged[:, AGES // 2 - 1] = events[:, -1], events[:, -2]
    return merged
