# SPDX-License-Identifier: Apache-2.0
"""Prometheus counters of early sharing."""

from __future__ import annotations

from typing import Mapping, Optional

from sglang.srt.observability.counts import Count, make_counts

_COUNTERS = {
    "shared_tokens": "Tokens of running requests that entered the prefix cache.",
    "served_tokens": (
        "Cached tokens of admitted requests that were there because a request that "
        "had not finished shared them."
    ),
    "kept_tokens": "Tokens of retracted requests that entered the prefix cache.",
    "saved_tokens": (
        "Cached tokens of resumed requests that were there because they were kept or "
        "shared before their retraction."
    ),
    "insertions": "Insertions of running and of retracted requests.",
    "arrival_insertions": (
        "Of them, those made because an arriving request continues a running one."
    ),
    "drains": "Results processed before the next launch so as to share.",
}


class SharingMetrics:
    """Counters ``sglang:spec_radix_sharing_*_total``.

    Args:
        labels: the scheduler's metric labels; None exports nothing. Construct it
            after ``PROMETHEUS_MULTIPROC_DIR`` is set.
    """

    shared_tokens: Count
    served_tokens: Count
    kept_tokens: Count
    saved_tokens: Count
    insertions: Count
    arrival_insertions: Count
    drains: Count

    def __init__(self, labels: Optional[Mapping[str, str]] = None):
        counts = make_counts("spec_radix_sharing", _COUNTERS, labels)
        for name, count in counts.items():
            setattr(self, name, count)

    def values(self) -> dict[str, float]:
        """All counts by name."""
        return {name: getattr(self, name).value for name in _COUNTERS}
