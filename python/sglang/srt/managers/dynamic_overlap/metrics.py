# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics ``sglang:dynamic_overlap_*``, made when first exported.

Counting is a dictionary update; what was counted is handed to prometheus_client once
in a while, since one of its counters costs more than the decision itself.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Mapping, Optional

from sglang.srt.managers.dynamic_overlap.decision import PHASES, OverlapDecisionMaker

EXPORT_INTERVAL_STEPS = 64
CPU_PARTS = ("schedule", "launch", "process")


class OverlapMetrics:
    """Decisions by outcome and reason, switches, and the two averages.

    Args:
        maker: whose averages and switches are shown.
        labels: the scheduler's metric labels; None exports nothing.
    """

    def __init__(
        self, maker: OverlapDecisionMaker, labels: Optional[Mapping[str, str]]
    ):
        self.counts: Counter[tuple[bool, str]] = Counter()
        self._maker = maker
        self._labels = labels
        self._made: Optional[dict[str, Any]] = None
        self._exported: Counter[tuple[bool, str]] = Counter()
        self._exported_switches = 0
        self._since_export = 0

    def decided(self, overlap: bool, reason: str) -> None:
        """Counts one decision."""
        self.counts[overlap, reason] += 1
        self._since_export += 1
        if self._since_export >= EXPORT_INTERVAL_STEPS:
            self.export()

    def export_rest(self) -> None:
        """Exports what has been counted since; called while there is nothing to do."""
        if self._since_export:
            self.export()

    def export(self) -> None:
        """Brings the exported metrics up to date."""
        self._since_export = 0
        if self._labels is None:
            return
        if self._made is None:
            self._made = _make(list(self._labels))
        decisions = self._made["decisions"]
        for (overlap, reason), count in self.counts.items():
            new = count - self._exported[overlap, reason]
            if new:
                decisions.labels(
                    **self._labels,
                    outcome="overlap" if overlap else "drain",
                    reason=reason,
                ).inc(new)
        self._exported = self.counts.copy()
        new = self._maker.switches - self._exported_switches
        if new or not self._exported_switches:
            self._made["switches"].labels(**self._labels).inc(new)
            self._exported_switches = self._maker.switches
        for phase, size in self._maker.kinds():
            averages = self._maker.averages(phase, size)
            if averages is None:
                continue
            labels = {**self._labels, "phase": PHASES[phase], "size": str(size)}
            self._made["forward"].labels(**labels).set(averages.forward)
            for part in CPU_PARTS:
                host = self._made["cpu"].labels(**labels, part=part)
                host.set(getattr(averages, part))


def _make(names: list[str]) -> dict[str, Any]:
    from prometheus_client import Counter as PrometheusCounter
    from prometheus_client import Gauge

    def gauge(name: str, text: str, *more: str) -> Gauge:
        return Gauge(
            f"sglang:dynamic_overlap_{name}_seconds",
            f"{text}, average over steps of the phase whose rows (decode) or tokens "
            "(prefill) have the binary magnitude of size (0: any).",
            [*names, "phase", "size", *more],
            multiprocess_mode="mostrecent",
        )

    return {
        "decisions": PrometheusCounter(
            "sglang:dynamic_overlap_decisions_total",
            "Results that were overlapped with the next forward pass (overlap) or "
            "processed before it was scheduled or launched (drain), by rule.",
            [*names, "outcome", "reason"],
        ),
        "switches": PrometheusCounter(
            "sglang:dynamic_overlap_switches_total",
            "Times the decision for a phase and size changed, probes aside.",
            names,
        ),
        "forward": gauge(
            "forward", "Forward time that launching leaves for the host to use"
        ),
        "cpu": gauge(
            "cpu",
            "Host time by part; all but the launch could run under a forward pass",
            "part",
        ),
    }
