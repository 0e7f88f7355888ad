# SPDX-License-Identifier: Apache-2.0
"""What is exported, read back as a scrape."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from harness import Metrics

metrics = pytest.importorskip(
    "sglang.srt.managers.dynamic_overlap.metrics",
    reason="topic dynamic-overlap is not in this build",
)
from sglang.srt.managers.dynamic_overlap.config import DynamicOverlapConfig  # noqa: E402
from sglang.srt.managers.dynamic_overlap.decision import (  # noqa: E402
    DECODE,
    OverlapDecisionMaker,
    Proposal,
)

PREFIX = "sglang:dynamic_overlap_"


@pytest.fixture
def scrape(monkeypatch):
    """Returns the samples of a registry that only these metrics are in."""
    import prometheus_client

    registry = prometheus_client.CollectorRegistry()
    for name in ("Counter", "Gauge"):
        kind = getattr(prometheus_client, name)
        monkeypatch.setattr(
            prometheus_client,
            name,
            lambda *args, kind=kind, **more: kind(*args, registry=registry, **more),
        )
    return lambda: Metrics.parse(prometheus_client.generate_latest(registry).decode())


def test_counts_and_averages_are_exported(scrape):
    maker = OverlapDecisionMaker(DynamicOverlapConfig())
    exported = metrics.OverlapMetrics(maker, {"model_name": "m", "tp_rank": "0"})
    for _ in range(12):
        maker.observe(DECODE, 9, True, 0.001, 0.002, 0.012, 0.003)
        maker.decide(DECODE, 9)
    exported.counts[True, "heuristic"] += 1
    exported.counts[False, "grammar"] += 1
    exported.export()
    seen = scrape()
    decisions = PREFIX + "decisions_total"
    assert seen.by(decisions, "reason", outcome="overlap") == {"heuristic": 1}
    assert seen.by(decisions, "reason", outcome="drain") == {"grammar": 1}
    assert seen.get(PREFIX + "switches_total", model_name="m") == 0
    assert seen.get(PREFIX + "forward_seconds", phase="decode", size="8") == pytest.approx(0.01)
    parts = seen.by(PREFIX + "cpu_seconds", "part", phase="decode", size="8")
    assert parts == {
        "schedule": pytest.approx(0.001),
        "launch": pytest.approx(0.002),
        "process": pytest.approx(0.003),
    }
    maker.apply([Proposal(DECODE, 4, False)])
    exported.counts[False, "measured"] += 12
    exported.export()
    seen = scrape()
    assert seen.get(PREFIX + "switches_total", model_name="m") == 1
    assert seen.by(decisions, "reason") == {
        "heuristic": 1,
        "grammar": 1,
        "measured": 12,
    }


def test_nothing_is_made_before_it_is_exported_or_without_metrics(scrape):
    maker = OverlapDecisionMaker(DynamicOverlapConfig())
    metrics.OverlapMetrics(maker, {"model_name": "m"}).counts[True, "heuristic"] += 1
    silent = metrics.OverlapMetrics(maker, None)
    silent.counts[True, "heuristic"] += 1
    silent.export()
    assert scrape().kinds == {}


@pytest.mark.parametrize("decisions", [3, metrics.EXPORT_INTERVAL_STEPS])
def test_decisions_are_exported_in_time(decisions):
    """After a number of them, or when there is nothing to do."""
    from overlap_loop_world import Batch, Mode
    from sglang.srt.managers.dynamic_overlap.controller import DynamicOverlap

    seen = []
    maker = OverlapDecisionMaker(DynamicOverlapConfig())
    counted = metrics.OverlapMetrics(maker, None)
    counted.export = lambda: seen.append(sum(counted.counts.values()))
    scheduler = SimpleNamespace(
        require_mlp_sync=False,
        last_batch=True,
        result_queue=[(None, None)],
        beam_coordinator=SimpleNamespace(_num_live_groups=0),
    )
    overlap = DynamicOverlap(scheduler, maker, counted, None)
    overlap.launch_begins(Batch(forward_mode=Mode("decode"), reqs=[None] * 8))
    for _ in range(decisions):
        overlap.before_schedule()
        overlap.before_launch()
    if decisions < metrics.EXPORT_INTERVAL_STEPS:
        assert not seen
        scheduler.result_queue, scheduler.last_batch = [], None
        overlap.before_schedule()
        overlap.before_schedule()
    assert seen == [decisions]
