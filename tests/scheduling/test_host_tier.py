# SPDX-License-Identifier: Apache-2.0
"""Host hits in the prefix order, with HiCache's real host tier in a real scheduler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.copies import Script, run_scripts

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("host_tier_by_hand.py")
CASES = [("rust", "write_through", "1"), ("python", "write_back", "4")]


def flags(write_policy: str, page: str) -> list[str]:
    return [
        *("--schedule-policy", "lpm", "--schedule-policy-config", "{}"),
        *("--enable-hierarchical-cache", "--hicache-ratio", "3"),
        *("--hicache-write-policy", write_policy, "--page-size", page),
        # Two stems fit the device, six the host, of eight: both tiers evict.
        *("--max-total-tokens", "320", "--max-running-requests", "1"),
    ]


@pytest.fixture(scope="module")
def results(tiny_model, tmp_path_factory):
    """Result by tree core."""
    folder = tmp_path_factory.mktemp("host-tier")
    paths = {core: folder / f"{core}.json" for core, *_ in CASES}
    run_scripts(
        Script(
            SCRIPT,
            [tiny_model, paths[core], *flags(write_policy, page)],
            {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": core},
        )
        for core, write_policy, page in CASES
    )
    return {core: json.loads(path.read_text()) for core, path in paths.items()}


@pytest.mark.parametrize("core", [core for core, *_ in CASES])
def test_remembered_matches_follow_the_host_tier(results, core):
    found = results[core]
    assert found["core"] == {"rust": "RustUnifiedTreeCore", "python": "UnifiedTreeCore"}[core]
    assert not found["sweeping"], "matches are remembered, not renewed at every call"
    assert found["wrong"] == []
    assert found["host_hits"] > 20
    assert found["counts"]["host"] > 0
    assert found["counts"]["insert"] > 0
    # What the host kept of that stem; more than the 32 tokens below which siblings wait.
    assert found["cached"]["from host"] > 32
    ended = found["ended"]
    assert ended.index("from host") < ended.index("cold")
