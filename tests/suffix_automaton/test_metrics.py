# SPDX-License-Identifier: Apache-2.0
"""`/metrics` says what the bounds gave up, and when drafting paused and recovered."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

prometheus = pytest.importorskip("prometheus_client")
sam = pytest.importorskip("sgl_kernel_ext.suffix_automaton", reason="needs sgl-kernel-ext")
metrics = pytest.importorskip(
    "sglang.srt.speculative.suffix_automaton.metrics", reason="topic ngram-sam is not in this build"
)

LABELS = {"model_name": "m"}


def proposer(**settings):
    settings = {"draft_token_num": 8, "vocab_size": 1000, "mode": "fast", **settings}
    return sam.DraftProposer(sam.ProposerConfig(**settings))


def value(name: str) -> float:
    return prometheus.REGISTRY.get_sample_value(f"sglang:ngram_sam_{name}", LABELS)


@pytest.fixture
def exported():
    """The metrics, taken out of the process' registry again afterwards."""
    known = set(prometheus.REGISTRY._collector_to_names)
    yield metrics.SamMetrics(LABELS)
    for collector in set(prometheus.REGISTRY._collector_to_names) - known:
        prometheus.REGISTRY.unregister(collector)


def test_every_counter_of_the_proposer_is_exported(exported):
    exported.update(proposer().counters())
    uncounted = {"steps", "paused_steps"}  # upstream counts verifications
    for name in proposer().counters().keys() - uncounted:
        assert value(name) == 0 or value(f"{name}_total") == 0


# In a process of its own; the module's file needs nothing of sglang, whose import takes long.
REPLICA = """
import runpy, sys
made = runpy.run_path(sys.argv[1])
counts = dict.fromkeys([*made["_GAUGES"], *made["_COUNTERS"]], 3)
made["SamMetrics"]({"model_name": "m"}).update(counts)
"""


def test_gauges_of_replicas_add_up(tmp_path):
    from prometheus_client import multiprocess

    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for _ in range(2):
        command = [sys.executable, "-c", REPLICA, metrics.__file__]
        subprocess.run(command, env=environment, check=True, timeout=120)
    registry = prometheus.CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, str(tmp_path))
    for name in ("own_tokens", "requests", "drafted_total"):
        assert registry.get_sample_value(f"sglang:ngram_sam_{name}", LABELS) == 6


def test_what_the_bounds_gave_up_is_counted_once(exported):
    ours = proposer(max_request_tokens=64, max_total_tokens=100, max_shared_tokens=64)
    for request in range(4):
        ours.begin(request, list(range(50)) * 3, shared_from=0, namespace="ab"[request % 2])
        ours.step([request], [[1]])
        exported.update(ours.counters())
    counters = ours.counters()
    for name in ("own_tokens_dropped", "shared_tokens_dropped", "requests_dropped"):
        assert counters[name] > 0
        assert value(f"{name}_total") == counters[name]
    assert value("own_tokens") == counters["own_tokens"] <= 100
    assert value("requests") == counters["requests"]


def test_pauses_and_recoveries_are_counted(exported):
    ours = proposer(mode="full", pause_below=0.5, pause_window=8, share_outputs=False)
    ours.begin(1, [1, 2, 3, 4] * 10)
    rng = random.Random(0)
    for _ in range(12):
        ours.step([1], [[rng.randrange(100, 900)]])
    exported.update(ours.counters())
    assert (value("pauses_total"), value("recoveries_total")) == (1, 0)
    for _ in range(30):
        ours.step([1], [[1, 2]])
    exported.update(ours.counters())
    assert (value("pauses_total"), value("recoveries_total")) == (1, 1)
    assert value("accepted_total") == ours.counters()["accepted"] > 0
