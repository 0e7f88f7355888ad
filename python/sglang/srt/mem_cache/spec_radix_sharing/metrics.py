# SPDX-License-Identifier: Apache-2.0
"""Prometheus counters of early sharing."""

from __future__ import annotations

from typing import Mapping, Optional


class Count:
    """A counter that is also readable here, whether or not metrics are exported."""

    __slots__ = ("_exported", "value")

    def __init__(self, exported=None):
        self.value = 0
        self._exported = exported

    def inc(self, amount: int) -> None:
        """Add ``amount``, at least 0."""
        self.value += amount
        if self._exported is not None:
            self._exported.inc(amount)


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
    drains: Count

    def __init__(self, labels: Optional[Mapping[str, str]] = None):
        make = None
        if labels is not None:
            from prometheus_client import Counter

            def make(name: str, text: str):
                return Counter(
                    f"sglang:spec_radix_sharing_{name}_total", text, list(labels)
                ).labels(**labels)

        for name, text in _COUNTERS.items():
            setattr(self, name, Count(make(name, text) if make else None))

    def values(self) -> dict[str, int]:
        """All counts by name."""
        return {name: getattr(self, name).value for name in _COUNTERS}
