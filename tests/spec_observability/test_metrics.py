# SPDX-License-Identifier: Apache-2.0
"""What reaches Prometheus, from several processes as on a server."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness import Metrics

pytest.importorskip("sglang.srt.speculative.observability.metrics")

# One rank: counts two steps and exports them.
RANK = """
import sys
from sglang.srt.speculative.observability import metrics
assert "prometheus_client" not in sys.modules, "made before the folder is known"
from sglang.srt.speculative.observability.drafts import StepDrafts
from sglang.srt.speculative.observability.step import Outcome, count_step
from sglang.srt.speculative.observability.totals import ServerTotals
totals = ServerTotals()
for accepted in ([7, 8], []):
    outcomes = [Outcome(accepted, len(accepted) + 1, 12), None]
    totals.add(count_step(StepDrafts(5, draft_slots=4), outcomes))
made = metrics.SpecMetrics({"model_name": "m", "dp_rank": sys.argv[1]})
made.publish(totals)
made.publish_ratios(totals)
made.observe_stage("verify", "host", 0.02)
made.observe_stage("verify", "host", 0.2)
"""
SCRAPE = """
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""
P = "sglang:spec_"


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path_factory.mktemp("multiproc"))}
    for rank in "01":
        subprocess.run([sys.executable, "-c", RANK, rank], env=env, check=True)
    text = subprocess.run(
        [sys.executable, "-c", SCRAPE], env=env, check=True, capture_output=True, text=True
    ).stdout
    return Metrics.parse(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps_total", 2),
        ("drafted_tokens_total", 8),
        ("accepted_tokens_total", 2),
        ("rejected_tokens_total", 6),
        ("discarded_tokens_total", 8),
        ("discarded_request_steps_total", 2),
        ("kv_slots_written_total", 20),
        ("kv_slots_overwritten_total", 16),
        ("kv_reserve_slot_steps_total", 24),
        ("kv_reserve_unneeded_slot_steps_total", 14),
        ("step_accepted_tokens_count", 2),
        ("step_accepted_tokens_sum", 2),
        ("step_drafted_tokens_sum", 8),
        ("stage_seconds_count", 2),
        ("draft_accept_ratio", 2 / 8),
        ("draft_waste_ratio", 14 / 16),
        ("kv_overwritten_ratio", 16 / 20),
        ("kv_reserve_unneeded_ratio", 14 / 24),
        ("kv_reserved_slots", 12),
        ("kv_reserve_unneeded_slots", 7),
    ],
)
def test_each_rank_exports_its_own(scraped, name, value):
    for rank in "01":
        assert scraped.total(P + name, dp_rank=rank) == pytest.approx(value)
    assert scraped.total(P + name) == pytest.approx(2 * value)


def test_positions_and_sources(scraped):
    for name, values in (
        ("offered_steps", {"1": 2, "2": 2, "3": 2, "4": 2}),
        ("drafted_tokens", {"1": 2, "2": 2, "3": 2, "4": 2}),
        ("accepted_tokens", {"1": 1, "2": 1}),
    ):
        assert scraped.by(f"{P}position_{name}_total", "position", dp_rank="0") == values
    labels = {"source": "draft_model", "match_length": "unknown"}
    assert scraped.total(f"{P}source_drafted_tokens_total", **labels) == 16
    assert scraped.total(f"{P}source_accepted_tokens_total", **labels) == 4


def test_histograms_are_cumulative_as_the_clients_own(scraped):
    buckets = scraped.by(f"{P}step_accepted_tokens_bucket", "le", dp_rank="1")
    assert (buckets["0.0"], buckets["1.0"], buckets["2.0"], buckets["+Inf"]) == (1, 1, 2, 2)


def test_names_follow_prometheus_conventions(scraped):
    for name, kind in scraped.kinds.items():
        base = name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
        assert name.startswith(P)
        if kind == "counter":
            assert name.endswith("_total")
        elif kind == "histogram":
            assert base.endswith(("_seconds", "_tokens"))
        else:
            assert kind == "gauge" and base.endswith(("_ratio", "_slots"))


def test_many_equal_observations_are_those_one_by_one():
    from prometheus_client import CollectorRegistry, Histogram
    from sglang.srt.speculative.observability.metrics import TOKEN_BUCKETS, observe_times

    registry = CollectorRegistry()
    one, many = (
        Histogram(name, "text", buckets=TOKEN_BUCKETS, registry=registry)
        for name in ("one", "many")
    )
    for value, times in ((0, 3), (1, 1), (9, 2), (64, 1), (65, 4)):
        observe_times(many, value, times)
        for _ in range(times):
            one.observe(value)

    def samples(metric):
        return [
            (s.name, s.labels, s.value) for s in metric._child_samples() if s.name != "_created"
        ]

    assert samples(one) == samples(many)


def test_a_backend_without_buckets_gets_single_observations():
    from sglang.srt.speculative.observability.metrics import observe_times

    class Other:
        def __init__(self):
            self.seen = []

        def observe(self, value):
            self.seen.append(value)

    other = Other()
    observe_times(other, 3, 4)
    assert other.seen == [3] * 4
