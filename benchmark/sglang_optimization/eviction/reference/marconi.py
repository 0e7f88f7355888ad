# SPDX-License-Identifier: Apache-2.0
"""FLOP-aware eviction in the style of Marconi.

R. Pan et al., "Marconi: Prefix Caching for the Era of Hybrid LLMs", MLSys 2025
(arXiv:2411.19379), section 4.2: evict the lowest ``recency + alpha * flop_efficiency``,
both normalised over the candidates; FLOP efficiency is the compute that a hit
saves by the memory it occupies.

Marconi also admits states selectively and tunes alpha by replay. Admission matters
for recurrent layers only, which this benchmark has none of, and alpha stays fixed.
"""

from __future__ import annotations

from typing import Any, Iterable

from .base import ReferencePolicy, relative_prefill_cost, start_of

ALPHA = 1.0


class Marconi(ReferencePolicy):
    """Balances recency against compute saved by a byte. Keeps no state of its own."""

    def __init__(self, capacity: int, block_tokens: int, alpha: float = ALPHA):
        super().__init__(capacity, block_tokens)
        self._alpha = alpha
        self._time_low = self._time_span = 0.0
        self._flop_low = self._flop_span = 0.0

    def begin_eviction(self, leaves: Iterable[Any]) -> None:
        times = []
        efficiencies = []
        for leaf in leaves:
            times.append(leaf.last_access_time)
            efficiencies.append(self._efficiency(leaf))
        if times:
            self._time_low, self._flop_low = min(times), min(efficiencies)
            self._time_span = max(times) - self._time_low
            self._flop_span = max(efficiencies) - self._flop_low

    def get_priority(self, node: Any) -> float:
        recency = _scaled(node.last_access_time, self._time_low, self._time_span)
        flops = _scaled(self._efficiency(node), self._flop_low, self._flop_span)
        return recency + self._alpha * flops

    def _efficiency(self, node: Any) -> float:
        start = start_of(node)
        return relative_prefill_cost(
            start * self.block_tokens, (start + len(node.key)) * self.block_tokens
        )


def _scaled(value: float, low: float, span: float) -> float:
    return (value - low) / span if span else 0.0
