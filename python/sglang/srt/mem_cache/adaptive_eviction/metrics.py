# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of the learned policy.

Made at the first eviction of a server with metrics on: prometheus_client must be
imported after PROMETHEUS_MULTIPROC_DIR is set.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Mapping

from .reuse_model import CLASSES, class_label

if TYPE_CHECKING:
    from .policy import LearnedPolicy

_PREFIX = "sglang:adaptive_eviction_"
_SECONDS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0)


@cache
def _collectors(label_names: tuple[str, ...]) -> dict[str, Any]:
    """One set of collectors a process; several trees differ by their labels."""
    from prometheus_client import Counter, Gauge, Histogram

    names = list(label_names)

    def gauge(name: str, text: str, *extra: str) -> Gauge:
        return Gauge(
            _PREFIX + name, text, names + list(extra), multiprocess_mode="mostrecent"
        )

    return {
        "evicted": Counter(
            _PREFIX + "evicted_tokens_total",
            "Tokens evicted by tier (device, host) and reuse class: earlier hits of "
            "the page (h), unknown blocks (n) and output length (o) of its request.",
            [*names, "tier", "reuse_class"],
        ),
        "ghost_hits": Counter(
            _PREFIX + "ghost_hit_tokens_total",
            "Tokens that a request needed after they had been evicted, while they "
            "were still remembered.",
            names,
        ),
        "seconds": Histogram(
            _PREFIX + "seconds",
            "Time of one device eviction walk, selection and tree updates.",
            names,
            buckets=_SECONDS,
        ),
        "probability": gauge(
            "reuse_probability",
            "Learned chance that a page of the class is used again.",
            "reuse_class",
        ),
        "entries": gauge("index_entries", "Entries of the victim index.", "tier"),
        "bytes": gauge("state_bytes", "Bytes of records, ghosts, counts and index."),
    }


class EvictionMetrics:
    """Publishes the changes of one policy's counters after each walk."""

    def __init__(self, labels: Mapping[str, Any]) -> None:
        self._labels = dict(labels)
        self._collectors = _collectors(tuple(self._labels))
        self._sent: dict[tuple[str, int], int] = {}
        self._ghost_hits = 0
        self._rebuilds = 0

    def observe(self, policy: LearnedPolicy, seconds: float) -> None:
        """Publish what changed since the last call; ``seconds`` of the walk."""
        labels, made = self._labels, self._collectors
        made["seconds"].labels(**labels).observe(seconds)
        for tier, counts in policy.records.evicted_tokens.items():
            for cls, total in enumerate(counts):
                new = total - self._sent.get((tier, cls), 0)
                if new:
                    self._sent[tier, cls] = total
                    made["evicted"].labels(
                        **labels, tier=tier, reuse_class=class_label(cls)
                    ).inc(new)
        if policy.ghost_hit_tokens > self._ghost_hits:
            made["ghost_hits"].labels(**labels).inc(
                policy.ghost_hit_tokens - self._ghost_hits
            )
            self._ghost_hits = policy.ghost_hit_tokens
        for tier, index in policy.indexes:
            made["entries"].labels(**labels, tier=tier).set(len(index))
        if policy.model.rebuilds != self._rebuilds:
            self._rebuilds = policy.model.rebuilds
            made["bytes"].labels(**labels).set(policy.state_bytes())
            for cls in range(CLASSES):
                if policy.model.exposures[cls].any():
                    made["probability"].labels(
                        **labels, reuse_class=class_label(cls)
                    ).set(policy.model.reuse_probability(cls))
