# SPDX-License-Identifier: Apache-2.0
"""Adaptive eviction with HiCache's real host tier in a real scheduler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize(("write_policy", "page"), [("write_through", "1"), ("write_back", "4")])
def test_both_tiers_evict_and_answers_stay(tiny_model, tmp_path, write_policy, page):
    result, metrics = tmp_path / "result.json", tmp_path / "metrics"
    metrics.mkdir()
    done = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("host_tier_by_hand.py")),
            *(str(tiny_model), str(result)),
            *("--radix-eviction-policy", "adaptive", "--page-size", page),
            *("--radix-eviction-policy-config", '{"trim_tokens": 1, "block_tokens": 32}'),
            *("--enable-hierarchical-cache", "--hicache-ratio", "1.5"),
            *("--hicache-write-policy", write_policy, "--enable-priority-scheduling"),
            # Four of ten conversations fit the device, six the host.
            *("--max-total-tokens", "512", "--max-running-requests", "2", "--enable-metrics"),
        ],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(metrics)},
        timeout=500,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(result.read_text())
    assert found["checks"] == 6
    assert found["free"] == found["size"], "a slot is lost or freed twice"
    for prompt, answers in found["answers"].items():
        assert all(answer == answers[0] for answer in answers), prompt
    assert max(len(answers) for answers in found["answers"].values()) > 2
    assert found["loaded_back"] > 0
    report = found["report"]
    assert sum(report["evicted_tokens"].values()) > 512
    assert sum(report["evicted_host_tokens"].values()) > 0
    assert report["ghost_hit_tokens"] > 0
    assert report["rebuilds"] > 0

    def total(name: str, **labels: str) -> float:
        return sum(
            value
            for sample, have, value in found["metrics"]
            if sample == f"sglang:adaptive_eviction_{name}" and labels.items() <= have.items()
        )

    counts = report["evicted_tokens"].values()
    assert total("evicted_tokens_total", tier="device") == sum(counts)
    assert total("evicted_tokens_total", tier="host") > 0
    assert 0 < total("ghost_hit_tokens_total") <= report["ghost_hit_tokens"]
