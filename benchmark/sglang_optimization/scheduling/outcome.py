# SPDX-License-Identifier: Apache-2.0
"""What one run measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Sequence

from common import stats


@dataclass
class Outcome:
    """Times in seconds of virtual time unless named otherwise.

    Attributes:
        hit_tokens: prompt tokens taken from the cache at admission.
        prompt_tokens: prompt tokens of the admitted requests.
        calls_us: processor time of each call of the policy.
        queue_lengths: waiting requests at each of these calls.
        waits: from arrival to admission; requests still waiting at the end
            count with their age, so that starving is not hidden.
        cold_waits: the same, requests without a shared prefix only.
        slowdowns: response time by the time it takes alone and uncached.
        unfinished: requests still waiting at the end.
    """

    hit_tokens: int = 0
    prompt_tokens: int = 0
    admitted: int = 0
    unfinished: int = 0
    rejected: int = 0
    virtual_s: float = 0.0
    calls_us: list[float] = field(default_factory=list)
    queue_lengths: list[int] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    cold_waits: list[float] = field(default_factory=list)
    slowdowns: list[float] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def hit_ratio(self) -> float:
        """Hit tokens by prompt tokens."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def row(self) -> dict[str, float | int | None]:
        """The figures of one result row."""
        return {
            "hit_ratio": self.hit_ratio,
            "call_us_p50": stats.percentile(self.calls_us, 50),
            "call_us_p99": stats.percentile(self.calls_us, 99),
            "calls": len(self.calls_us),
            "queue_mean": stats.mean(self.queue_lengths),
            "wait_mean": stats.mean(self.waits),
            "wait_p99": stats.percentile(self.waits, 99),
            "wait_worst": max(self.waits, default=None),
            "cold_wait_worst": max(self.cold_waits, default=None),
            "jain": jain(self.slowdowns),
            "admitted": self.admitted,
            "waiting_at_end": self.unfinished,
            "rejected": self.rejected,
            "virtual_s": self.virtual_s,
            **self.counters,
        }


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index (1984): 1 all equal, 1/n one takes all; NaN when empty."""
    if not values:
        return float("nan")
    total = sum(values)
    squares = sum(value * value for value in values)
    return total * total / (len(values) * squares) if squares else 1.0
