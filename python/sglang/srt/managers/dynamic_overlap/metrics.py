# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics ``sglang:dynamic_overlap_*``, made when first exported.

Counting is a dictionary update; what was counted is handed to prometheus_client once
in a while, since one of its counters costs more than the decision itself.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Mapping, Optional

from sglang.srt.managers.dynamic_overlap.decision import PHASES, OverlapDecisionMaker

EXPORT_INTERVAL_STEPS = 256
CPU_PARTS = ("schedule", "launch", "process")


class OverlapMetrics:
    """Decisions by outcome and reason, switches, and the two averages.

    Args:
        maker: whose averages and switches are shown.
        labels: the scheduler's metric labels; None exports nothing.

    Attributes:
        counts: decisions by (whether to overlap, by what rule); counted by the caller,
            who calls ``export`` after ``EXPORT_INTERVAL_STEPS`` of them at the latest.
    """

    def __init__(
        self, maker: OverlapDecisionMaker, labels: Optional[Mapping[str, str]]
    ):
        self.counts: defaultdict[tuple[bool, str], int] = defaultdict(int)
        self._maker = maker
        self._labels = labels
        self._made: Optional[dict[str, Any]] = None
        self._exported: dict[tuple[bool, str], int] = {}
        self._exported_switches = 0

    def export(self) -> None:
        """Brings the exported metrics up to date."""
        if self._labels is None:
            return
        if self._made is None:
            self._made = _make(list(self._labels))
        decisions = self._made["decisions"]
        for (overlap, reason), count in self.counts.items():
            new = count - self._exported.get((overlap, reason), 0)
            if new:
                decisions.labels(
                    **self._labels,
                    outcome="overlap" if overlap else "drain",
                    reason=reason,
                ).inc(new)
        self._exported = dict(self.counts)
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
