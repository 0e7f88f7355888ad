# SPDX-License-Identifier: Apache-2.0
"""Counters that the process reads as well as exports."""

from __future__ import annotations

from typing import Any, Mapping, Optional


class Count:
    """A counter that is readable here, whether or not it is exported.

    Args:
        exported: the Prometheus counter that follows it, None for none.

    Attributes:
        value: the sum so far.
    """

    __slots__ = ("_exported", "value")

    def __init__(self, exported: Any = None):
        self.value: float = 0
        self._exported = exported

    def inc(self, amount: float = 1) -> None:
        """Add ``amount``, at least 0."""
        self.value += amount
        if self._exported is not None:
            self._exported.inc(amount)


def make_counts(
    prefix: str, texts: Mapping[str, str], labels: Optional[Mapping[str, str]]
) -> dict[str, Count]:
    """Counts by name, exported as ``sglang:<prefix>_<name>_total``.

    Args:
        prefix: of the subject.
        texts: help text of each.
        labels: names and values of all their labels; None exports nothing. To be
            called after ``PROMETHEUS_MULTIPROC_DIR`` is set.
    """
    if labels is None:
        return {name: Count() for name in texts}
    from prometheus_client import Counter

    return {
        name: Count(
            Counter(f"sglang:{prefix}_{name}_total", text, list(labels)).labels(
                **labels
            )
        )
        for name, text in texts.items()
    }
