# SPDX-License-Identifier: Apache-2.0
"""The real scheduler's loops with input that arrives during a warming chunk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scheduler_by_hand import PROMPTS, TEXT

from support.copies import Script, run_scripts

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


# Tree core and flags of each run.
RUNS = {
    "without": ("rust", []),
    "rust": ("rust", ["--cache-warming-chunk-size", "32", "--page-size", "1"]),
    "python": (
        "python",
        ["--cache-warming-chunk-size", "32", "--page-size", "8", "--disable-overlap-schedule"],
    ),
    "hints": ("rust", ["--cache-warming-mode", "tree", "--schedule-policy-config", "{}"]),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory, tiny_model):
    """What each of ``RUNS`` found."""
    folder = tmp_path_factory.mktemp("by-hand")
    listed = folder / "prompts.json"
    listed.write_text(json.dumps({"prompts": LISTED}))
    paths = {name: folder / f"{name}.result.json" for name in RUNS}
    script = Path(__file__).with_name("scheduler_by_hand.py")
    scripts = []
    for name, (core, flags) in RUNS.items():
        warming = [] if name == "without" else ["--cache-warming-prompts", listed]
        env = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": core}
        scripts.append(Script(script, [tiny_model, paths[name], *warming, *flags], env))
    run_scripts(scripts)
    return {name: json.loads(path.read_text()) for name, path in paths.items()}


@pytest.mark.parametrize("core", ["rust", "python"])
def test_kv_while_requests_and_a_flush_arrive(results, core):
    found, without = results[core], results["without"]
    _, flags = RUNS[core]
    assert found["core"] == {"rust": "RustUnifiedTreeCore", "python": "UnifiedTreeCore"}[core]
    assert found["overlap"] == ("--disable-overlap-schedule" not in flags)
    assert found["arrived_during_chunk"]["during a chunk"]
    assert found["arrived_during_chunk"]["flush"]
    # The flush was carried out, not refused, and nothing of warming was sent.
    assert found["control"] == ["FlushCacheReqOutput"]
    assert found["flushed"] == [True]
    assert set(found["output"]) == {"during a chunk", *PROMPTS, *(f"{n} again" for n in PROMPTS)}
    assert found["output"] == without["output"]
    page = int(flags[flags.index("--page-size") + 1])
    assert found["cached"]["first"] == len(TEXT) // page * page
    assert found["cached"]["tenant"] == 24
    assert found["cached"]["other"] == 0
    assert {p["name"]: p["state"] for p in found["prompts"]} == dict.fromkeys(
        ("text", "tenant", "long"), "warm"
    )
    assert [p["pinned"] for p in found["prompts"]] == [True, False, False]


def test_hints_change_no_answer_and_no_match(results):
    found, without = results["hints"], results["without"]
    assert found["order_reads_hints"]
    assert found["output"] == without["output"]
    assert found["cached"] == without["cached"]
    assert found["control"] == ["FlushCacheReqOutput"]
    assert {p["state"] for p in found["prompts"]} == {"warm"}
