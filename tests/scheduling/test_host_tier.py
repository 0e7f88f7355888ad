# SPDX-License-Identifier: Apache-2.0
"""Host hits in the prefix order, with HiCache's real host tier in a real scheduler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize(
    ("core", "write_policy", "page"),
    [("rust", "write_through", "1"), ("python", "write_back", "4")],
)
def test_remembered_matches_follow_the_host_tier(tiny_model, tmp_path, core, write_policy, page):
    result = tmp_path / "result.json"
    done = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("host_tier_by_hand.py")),
            *(str(tiny_model), str(result)),
            *("--schedule-policy", "lpm", "--schedule-policy-config", "{}"),
            *("--enable-hierarchical-cache", "--hicache-ratio", "3"),
            *("--hicache-write-policy", write_policy, "--page-size", page),
            # Two stems fit the device, six the host, of eight: both tiers evict.
            *("--max-total-tokens", "320", "--max-running-requests", "1"),
        ],
        env={**os.environ, "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": core},
        timeout=500,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(result.read_text())
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
