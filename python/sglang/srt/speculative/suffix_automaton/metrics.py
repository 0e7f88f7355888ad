# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of the suffix-automaton proposer."""

from __future__ import annotations

from typing import Any, Mapping

_GAUGES = {
    "requests": "Requests whose text is indexed.",
    "own_tokens": "Tokens indexed for single requests.",
    "own_bytes": "Bytes that they take.",
    "shared_tokens": "Recent output tokens indexed for all requests.",
    "shared_bytes": "Bytes that they take.",
    "namespaces": "Namespaces with shared outputs.",
}
_COUNTERS = {
    "own_tokens_dropped": "Tokens of requests given up to stay within the bounds.",
    "shared_tokens_dropped": "Shared tokens given up to stay within the bounds.",
    "requests_dropped": "Requests whose text was given up as a whole.",
    "namespaces_dropped": "Namespaces whose shared outputs were given up.",
    "drafted": "Tokens drafted.",
    "accepted": "Drafted tokens that verification accepted.",
    "pauses": "Times a request was paused because its drafts kept failing.",
    "recoveries": "Times a paused request's trial was accepted.",
}


class SamMetrics:
    """``sglang:ngram_sam_*``, copied from the proposer's counters.

    Args:
        labels: names and values of the metrics' labels. Construct it after
            ``PROMETHEUS_MULTIPROC_DIR`` is set.
    """

    def __init__(self, labels: Mapping[str, str]):
        from prometheus_client import Counter, Gauge

        self._seen = dict.fromkeys(_COUNTERS, 0)
        self._gauges = {
            name: Gauge(
                f"sglang:ngram_sam_{name}",
                text,
                list(labels),
                # Data-parallel replicas have equal labels, each its own proposer.
                multiprocess_mode="livesum",
            ).labels(**labels)
            for name, text in _GAUGES.items()
        }
        self._counters = {
            name: Counter(f"sglang:ngram_sam_{name}_total", text, list(labels)).labels(
                **labels
            )
            for name, text in _COUNTERS.items()
        }

    def update(self, counters: Mapping[str, Any]) -> None:
        """Publishes the state that ``DraftProposer.counters`` returned."""
        for name, gauge in self._gauges.items():
            gauge.set(counters[name])
        for name, counter in self._counters.items():
            counter.inc(counters[name] - self._seen[name])
            self._seen[name] = counters[name]
