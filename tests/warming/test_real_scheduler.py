# SPDX-License-Identifier: Apache-2.0
"""The real scheduler's loops with input that arrives during a warming chunk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scheduler_by_hand import PROMPTS, TEXT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LISTED = [
    {"name": "text", "input_ids": TEXT, "pin_seconds": 600},
    {
        "name": "tenant",
        "input_ids": list(range(10, 34)),
        "extra_key": "tenant",
        "cache_salt": "pepper",
    },
    {"name": "long", "input_ids": [60 + i % 150 for i in range(700)], "priority": -1},
]


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory, tiny_model):
    folder = tmp_path_factory.mktemp("by-hand")
    (folder / "prompts.json").write_text(json.dumps({"prompts": LISTED}))

    def run(*flags, warming=True, core="rust"):
        result = folder / "result.json"
        listed = ["--cache-warming-prompts", str(folder / "prompts.json")] if warming else []
        subprocess.run(
            [
                sys.executable,
                str(Path(__file__).with_name("scheduler_by_hand.py")),
                str(tiny_model),
                str(result),
                *listed,
                *flags,
            ],
            env={**os.environ, "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": core},
            check=True,
            timeout=500,
            capture_output=True,
        )
        return json.loads(result.read_text())

    return run


@pytest.fixture(scope="module")
def without(by_hand):
    return by_hand(warming=False)


@pytest.mark.parametrize(
    ("core", "flags"),
    [
        ("rust", ["--page-size", "1"]),
        ("python", ["--page-size", "8", "--disable-overlap-schedule"]),
    ],
)
def test_kv_while_requests_and_a_flush_arrive(by_hand, without, core, flags):
    found = by_hand("--cache-warming-chunk-size", "32", *flags, core=core)
    assert found["core"] == {"rust": "RustUnifiedTreeCore", "python": "UnifiedTreeCore"}[core]
    assert found["overlap"] == ("--disable-overlap-schedule" not in flags)
    assert found["arrived_during_chunk"]["during a chunk"]
    assert found["arrived_during_chunk"]["flush"]
    # The flush was carried out, not refused, and nothing of warming was sent.
    assert found["control"] == ["FlushCacheReqOutput"]
    assert found["flushed"] == [True]
    assert set(found["output"]) == {"during a chunk", *PROMPTS, *(f"{n} again" for n in PROMPTS)}
    assert found["output"] == without["output"]
    page = int(flags[1])
    assert found["cached"]["first"] == len(TEXT) // page * page
    assert found["cached"]["tenant"] == 24
    assert found["cached"]["other"] == 0
    assert {p["name"]: p["state"] for p in found["prompts"]} == dict.fromkeys(
        ("text", "tenant", "long"), "warm"
    )
    assert [p["pinned"] for p in found["prompts"]] == [True, False, False]


def test_hints_change_no_answer_and_no_match(by_hand, without):
    found = by_hand("--cache-warming-mode", "tree", "--schedule-policy-config", "{}")
    assert found["order_reads_hints"]
    assert found["output"] == without["output"]
    assert found["cached"] == without["cached"]
    assert found["control"] == ["FlushCacheReqOutput"]
    assert {p["state"] for p in found["prompts"]} == {"warm"}
