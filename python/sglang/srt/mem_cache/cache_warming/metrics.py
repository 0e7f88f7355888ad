# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of cache warming."""

from __future__ import annotations

from typing import Mapping, Optional

from sglang.srt.observability.counts import Count, make_counts

_COUNTERS = {
    "prompts": "Listed prompts that became warm for the first time.",
    "tokens": "Tokens whose KV warming computed.",
    "seconds": "Seconds that warming's prefill steps took.",
    "served_tokens": "Cached tokens of real requests that lay in warmed prefixes.",
    "rewarmed": "Times a prompt was warmed again after eviction or a flush.",
    "aborted": "Warming steps taken back or ended without result.",
}


class WarmingMetrics:
    """Counters ``sglang:cache_warming_*_total`` and two gauges.

    Args:
        labels: the scheduler's metric labels; None exports nothing. Construct it
            after ``PROMETHEUS_MULTIPROC_DIR`` is set.
    """

    prompts: Count
    tokens: Count
    seconds: Count
    served_tokens: Count
    rewarmed: Count
    aborted: Count

    def __init__(self, labels: Optional[Mapping[str, str]] = None):
        self._resident = self._pinned = None
        for name, count in make_counts("cache_warming", _COUNTERS, labels).items():
            setattr(self, name, count)
        if labels is not None:
            from prometheus_client import Gauge

            def gauge(name: str, text: str):
                return Gauge(
                    f"sglang:cache_warming_{name}",
                    text,
                    list(labels),
                    multiprocess_mode="mostrecent",
                ).labels(**labels)

            self._resident = gauge(
                "resident_tokens", "Tokens of warmed prompts in the KV pool."
            )
            self._pinned = gauge("pinned_prompts", "Prompts locked against eviction.")

    def set_resident(self, tokens: int) -> None:
        """Tokens of warmed prompts in the pool, shared ones once."""
        if self._resident is not None:
            self._resident.set(tokens)

    def set_pinned(self, prompts: int) -> None:
        """Prompts locked now."""
        if self._pinned is not None:
            self._pinned.set(prompts)
