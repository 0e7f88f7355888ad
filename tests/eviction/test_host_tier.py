# SPDX-License-Identifier: Apache-2.0
"""Adaptive eviction with HiCache's real host tier in a real scheduler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.copies import Script, run_scripts

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("host_tier_by_hand.py")
CASES = [("write_through", "1"), ("write_back", "4")]


def flags(write_policy: str, page: str) -> list[str]:
    return [
        *("--radix-eviction-policy", "adaptive", "--page-size", page),
        *("--radix-eviction-policy-config", '{"trim_tokens": 1, "block_tokens": 32}'),
        *("--enable-hierarchical-cache", "--hicache-ratio", "1.5"),
        *("--hicache-write-policy", write_policy, "--enable-priority-scheduling"),
        # Four of ten conversations fit the device, six the host.
        *("--max-total-tokens", "512", "--max-running-requests", "2", "--enable-metrics"),
    ]


@pytest.fixture(scope="module")
def results(tiny_model, tmp_path_factory):
    """Result by write policy."""
    folder = tmp_path_factory.mktemp("host-tier")
    paths = {policy: folder / f"{policy}.json" for policy, _ in CASES}
    run_scripts(
        Script(SCRIPT, [tiny_model, paths[policy], *flags(policy, page)]) for policy, page in CASES
    )
    return {policy: json.loads(path.read_text()) for policy, path in paths.items()}


@pytest.mark.parametrize("write_policy", [policy for policy, _ in CASES])
def test_both_tiers_evict_and_answers_stay(results, write_policy):
    found = results[write_policy]
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
