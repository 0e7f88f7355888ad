# SPDX-License-Identifier: Apache-2.0
"""One request's sums, for ``meta_info``."""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.observability.drafts import SOURCES
from sglang.srt.speculative.observability.totals import Totals

# The key of the sums in a response's meta_info.
META_KEY = "spec_observability"


class RequestSummary:
    """Sums of a request's steps. Retraction does not reset them: the work was done."""

    __slots__ = ("stage_seconds", "totals")

    def __init__(self):
        self.totals = Totals()
        # Seconds of the steps' stages, shared with the batch, by (stage, clock).
        self.stage_seconds: dict[tuple[str, str], float] = {}

    def add_seconds(self, stage: str, clock: str, seconds: float) -> None:
        """Adds a stage of a step that the request was in."""
        key = (stage, clock)
        self.stage_seconds[key] = self.stage_seconds.get(key, 0.0) + seconds

    def meta_info(self) -> dict[str, Any]:
        """JSON-native; names as in docs/observability.md."""
        sums = self.totals
        return {
            "verify_steps": sums.request_steps,
            "drafted_tokens": sums.drafted,
            "accepted_tokens": sums.accepted,
            "rejected_tokens": sums.rejected,
            "accept_rate": sums.accepted / sums.drafted if sums.drafted else 0.0,
            "drafted_by_position": list(sums.drafted_at),
            "offered_by_position": sums.offered_at,
            "accepted_by_position": sums.accepted_at,
            "sources": self._sources(),
            "kv_slots_written": sums.kv_written,
            "kv_slots_overwritten": sums.kv_overwritten,
            "kv_reserve_slot_steps": sums.reserved,
            "kv_reserve_unneeded_slot_steps": sums.unneeded,
            "stage_seconds": [
                {"stage": stage, "clock": clock, "seconds": seconds}
                for (stage, clock), seconds in self.stage_seconds.items()
            ],
        }

    def _sources(self) -> dict[str, dict[str, int]]:
        out: dict[str, dict[str, int]] = {}
        for key, counts in (
            ("drafted", self.totals.drafted_from),
            ("accepted", self.totals.accepted_from),
        ):
            for origin, count in counts.items():
                entry = out.setdefault(
                    SOURCES[origin >> 4], {"drafted": 0, "accepted": 0}
                )
                entry[key] += count
        return out


def as_meta_info(summary: Any) -> dict[str, Any]:
    """A summary, or what it became in another process, as it stands in meta_info."""
    return summary if isinstance(summary, dict) else summary.meta_info()
