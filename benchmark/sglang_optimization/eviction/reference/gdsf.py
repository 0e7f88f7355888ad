# SPDX-License-Identifier: Apache-2.0
"""GreedyDual-Size with Frequency.

L. Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency
Caching Policy", HP Labs HPL-98-69R1, 1998.

An object is worth ``L + frequency * cost / size``; ``L`` rises to the worth of each
victim, which ages all others. Here cost is the compute to prefill a node's tokens
again, so ``cost / size`` grows with the position in the context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

from .base import ReferencePolicy, relative_prefill_cost, start_of


@dataclass(slots=True)
class _Record:
    frequency: int
    worth: float
    touched: int


class GDSF(ReferencePolicy):
    """Evicts the leaf of least worth; ties by recency."""

    def __init__(self, capacity: int, block_tokens: int):
        super().__init__(capacity, block_tokens)
        self._inflation = 0.0
        self._clock = 0
        self._records: dict[int, _Record] = {}

    def get_priority(self, node: Any) -> tuple[float, int]:
        record = self._records[node.id]
        return record.worth, record.touched

    def on_access(self, path: Sequence[Any]) -> None:
        start = 0
        for node in path:
            record = self._records[node.id]
            record.frequency += 1
            self._set_worth(node, record, start)
            start += len(node.key)

    def on_insert(self, node: Any) -> None:
        record = self._records[node.id] = _Record(1, 0.0, 0)
        self._set_worth(node, record, start_of(node))

    def on_split(self, upper: Any, lower: Any) -> None:
        record = self._records[lower.id]
        self._records[upper.id] = _Record(record.frequency, record.worth, record.touched)

    def on_evict(self, node: Any) -> None:
        self._inflation = max(self._inflation, self._records.pop(node.id).worth)

    def _set_worth(self, node: Any, record: _Record, start: int) -> None:
        self._clock += 1
        record.touched = self._clock
        cost = relative_prefill_cost(
            start * self.block_tokens, (start + len(node.key)) * self.block_tokens
        )
        record.worth = self._inflation + record.frequency * cost
