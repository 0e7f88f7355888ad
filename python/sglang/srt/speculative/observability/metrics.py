# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of speculative decoding, ``sglang:spec_*``."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Iterable, Mapping, Optional

from sglang.srt.speculative.observability.drafts import origin_labels
from sglang.srt.speculative.observability.totals import ServerTotals

PREFIX = "sglang:spec_"

COUNTERS = {
    "steps": "Verification steps of batches.",
    "drafted_tokens": "Draft tokens on offer in verification, fillers left out.",
    "accepted_tokens": "Draft tokens that verification accepted.",
    "rejected_tokens": "Draft tokens that it did not accept.",
    "discarded_tokens": (
        "Draft tokens for requests that had ended or were retracted before the result "
        "came; not in spec_drafted_tokens."
    ),
    "discarded_request_steps": "Verifications of such requests.",
    "kv_slots_written": "KV slots that verification wrote.",
    "kv_slots_overwritten": (
        "KV slots that verification wrote for tokens that were not kept: the next "
        "step writes there again, or they are freed."
    ),
    "kv_reserve_slot_steps": (
        "KV slots allocated beyond the committed tokens, summed over request steps."
    ),
    "kv_reserve_unneeded_slot_steps": (
        "Those of them beyond what the next step may write."
    ),
}
POSITION_COUNTERS = {
    "position_offered_steps": "Request steps whose draft reached this position.",
    "position_drafted_tokens": "Draft tokens on offer at this position.",
    "position_accepted_tokens": "Draft tokens accepted at this position.",
}
SOURCE_COUNTERS = {
    "source_drafted_tokens": "Draft tokens on offer by what proposed them.",
    "source_accepted_tokens": "Draft tokens accepted by what proposed them.",
}
GAUGES = {
    "draft_accept_ratio": "Accepted over drafted tokens, of the latest steps.",
    "draft_waste_ratio": (
        "Rejected and discarded over all drafted tokens, of the latest steps."
    ),
    "kv_overwritten_ratio": "Overwritten over written KV slots, of the latest steps.",
    "kv_reserve_unneeded_ratio": (
        "Unneeded over all reserved KV slots, of the latest steps."
    ),
    "kv_reserved_slots": "KV slots beyond committed tokens after the latest step.",
    "kv_reserve_unneeded_slots": "Those of them beyond what the next step may write.",
}
HISTOGRAMS = {
    "step_accepted_tokens": "Draft tokens accepted by a request in a step.",
    "step_drafted_tokens": "Draft tokens offered to a request in a step.",
}
STAGE_HISTOGRAM = "stage_seconds"

TOKEN_BUCKETS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64)
SECOND_BUCKETS = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025),
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
)


class SpecMetrics:
    """Exports ``ServerTotals`` and stage times.

    Args:
        labels: names and values of the scheduler's metric labels. Construct it
            after ``PROMETHEUS_MULTIPROC_DIR`` is set.
        collector_class: the scheduler's collector, whose metric classes are used
            if a deployment replaced prometheus_client's.
    """

    def __init__(
        self, labels: Mapping[str, Any], collector_class: Optional[type] = None
    ):
        import prometheus_client

        def chosen(kind: str) -> Any:
            replaced = getattr(collector_class, f"_{kind.lower()}_cls", None)
            return replaced or getattr(prometheus_client, kind)

        counter, gauge, histogram = map(chosen, ("Counter", "Gauge", "Histogram"))
        self._labels = dict(labels)
        names = list(labels)

        def counters(texts: Mapping[str, str], *more: str) -> dict[str, _Children]:
            return {
                name: _Children(
                    counter(f"{PREFIX}{name}_total", text, [*names, *more]), labels
                )
                for name, text in texts.items()
            }

        self._counters = counters(COUNTERS)
        self._positions = counters(POSITION_COUNTERS, "position")
        self._sources = counters(SOURCE_COUNTERS, "source", "match_length")
        self._gauges = {
            name: gauge(
                f"{PREFIX}{name}", text, names, multiprocess_mode="mostrecent"
            ).labels(**labels)
            for name, text in GAUGES.items()
        }
        self._histograms = {
            name: histogram(
                f"{PREFIX}{name}", text, names, buckets=TOKEN_BUCKETS
            ).labels(**labels)
            for name, text in HISTOGRAMS.items()
        }
        self._stages = _Children(
            histogram(
                f"{PREFIX}{STAGE_HISTOGRAM}",
                "Seconds of one stage of a speculative step.",
                [*names, "stage", "clock"],
                buckets=SECOND_BUCKETS,
            ),
            labels,
        )

    def observe_stage(self, stage: str, clock: str, seconds: float) -> None:
        """One segment of a step."""
        self._stages.get(stage=stage, clock=clock).observe(seconds)

    def publish(self, totals: ServerTotals) -> None:
        """Adds what happened since the last call."""
        live = totals.live
        sums = {
            "steps": totals.steps,
            "drafted_tokens": live.drafted,
            "accepted_tokens": live.accepted,
            "rejected_tokens": live.rejected,
            "discarded_tokens": totals.discarded,
            "discarded_request_steps": totals.discarded_request_steps,
            "kv_slots_written": live.kv_written + totals.discarded_kv,
            "kv_slots_overwritten": live.kv_overwritten + totals.discarded_kv,
            "kv_reserve_slot_steps": live.reserved,
            "kv_reserve_unneeded_slot_steps": live.unneeded,
        }
        for name, value in sums.items():
            # Also zeros: a counter that is not there cannot be told from one at 0.
            self._counters[name].get().inc(value)
        self._by_position("position_offered_steps", live.offered_at)
        self._by_position("position_drafted_tokens", live.drafted_at)
        self._by_position("position_accepted_tokens", live.accepted_at)
        for name, counts in (
            ("source_drafted_tokens", live.drafted_from),
            ("source_accepted_tokens", live.accepted_from),
        ):
            for origin, value in counts.items():
                source, match_length = origin_labels(origin)
                child = self._sources[name].get(
                    source=source, match_length=match_length
                )
                child.inc(value)
        for name, hist in (
            ("step_accepted_tokens", live.accepted_hist),
            ("step_drafted_tokens", live.drafted_hist),
        ):
            for value, times in enumerate(hist):
                if times:
                    observe_times(self._histograms[name], value, times)
        self._gauges["kv_reserved_slots"].set(totals.reserved_now)
        self._gauges["kv_reserve_unneeded_slots"].set(totals.unneeded_now)

    def publish_ratios(self, totals: ServerTotals) -> None:
        """Sets the ratios to those of ``totals``; one without samples stays."""
        live = totals.live
        written = live.kv_written + totals.discarded_kv
        for name, part, whole in (
            ("draft_accept_ratio", live.accepted, live.drafted),
            (
                "draft_waste_ratio",
                live.rejected + totals.discarded,
                live.drafted + totals.discarded,
            ),
            (
                "kv_overwritten_ratio",
                live.kv_overwritten + totals.discarded_kv,
                written,
            ),
            ("kv_reserve_unneeded_ratio", live.unneeded, live.reserved),
        ):
            if whole:
                self._gauges[name].set(part / whole)

    def _by_position(self, name: str, counts: Iterable[int]) -> None:
        children = self._positions[name]
        for position, value in enumerate(counts, start=1):
            children.get(position=str(position)).inc(value)


class _Children:
    """A metric's children by their own labels; looking one up by name is slow."""

    def __init__(self, metric: Any, labels: Mapping[str, Any]):
        self._metric = metric
        self._labels = dict(labels)
        self._known: dict[tuple[str, ...], Any] = {}

    def get(self, **own: str) -> Any:
        key = tuple(own.values())
        child = self._known.get(key)
        if child is None:
            child = self._known[key] = self._metric.labels(**self._labels, **own)
        return child


def observe_times(histogram: Any, value: float, times: int) -> None:
    """Observes ``value`` so many times, at the cost of one where possible.

    The client has no call for it; upstream reaches into its histogram for the
    inter-token latency in the same way. Other backends get single observations.
    """
    bounds = getattr(histogram, "_upper_bounds", None)
    if bounds is None:
        for _ in range(times):
            histogram.observe(value)
        return
    histogram._sum.inc(value * times)
    histogram._buckets[bisect_left(bounds, value)].inc(times)
