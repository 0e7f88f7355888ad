# SPDX-License-Identifier: Apache-2.0
"""Random histories on a real scheduler: one owner a page, the model's own answers.

``SPEC_RADIX_SHARING_OPERATIONS=10000`` makes each history as long as those that the
documentation reports.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support.copies import Script, run_scripts
from support.draft_heads import make_eagle3_head, make_eagle_head

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

HERE = Path(__file__).parent
OPERATIONS = int(os.environ.get("SPEC_RADIX_SHARING_OPERATIONS", "600"))
GIVE_UP_S = 120 + OPERATIONS * 0.3
CHECKS = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
}
SHARING = ["--enable-spec-radix-sharing", "--spec-radix-sharing-interval", "8"]
NGRAM = ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "6"]
# Admits far more than the pool can hold to the end.
SMALL = ["--max-total-tokens", "600", "--schedule-conservativeness", "0.01"]
SMALL += ["--max-running-requests", "32"]
LARGE = ["--max-total-tokens", "3000", "--max-running-requests", "32"]
CHUNKED = ["--chunked-prefill-size", "64"]
NO_OVERLAP = ["--disable-overlap-schedule"]
PAGES = ["--page-size", "4"]
HICACHE = ["--enable-hierarchical-cache", "--hicache-ratio", "2", "--hicache-size", "0"]
HICACHE += ["--hicache-write-policy", "write_through", "--hicache-io-backend", "direct"]
HICACHE += ["--hicache-mem-layout", "page_first_direct"]

# Name: core, algorithm with a draft model, flags.
CASES = {
    "ngram": ("rust", None, [*NGRAM, *LARGE, *CHUNKED]),
    "ngram-small-pool-pages": ("python", None, [*NGRAM, *SMALL, *PAGES, *CHUNKED]),
    "ngram-no-overlap": ("python", None, [*NGRAM, *LARGE, *NO_OVERLAP]),
    "plain-small-pool-pages": ("rust", None, [*SMALL, *PAGES, *CHUNKED]),
    "eagle": ("rust", "EAGLE", [*LARGE, *CHUNKED]),
    "eagle-no-overlap-pages": ("python", "EAGLE", [*LARGE, *PAGES, *NO_OVERLAP]),
    "eagle3-pages": ("python", "EAGLE3", [*LARGE, *PAGES, *CHUNKED]),
    "standalone-small-pool": ("python", "STANDALONE", [*SMALL, *CHUNKED]),
    "adaptive": ("python", None, [*NGRAM, *LARGE, "--radix-eviction-policy", "adaptive"]),
    "hicache": ("rust", None, [*LARGE, *PAGES, *HICACHE]),
}


def draft_flags(algorithm, tiny_model, folder):
    if algorithm is None:
        return []
    make = {"EAGLE": make_eagle_head, "EAGLE3": make_eagle3_head}.get(algorithm)
    model = make(tiny_model, folder / algorithm) if make else tiny_model
    return [
        *("--speculative-algorithm", algorithm),
        *("--speculative-draft-model-path", str(model)),
        *("--speculative-num-steps", "3"),
        *("--speculative-eagle-topk", "2"),
        *("--speculative-num-draft-tokens", "6"),
    ]


def script(name, tiny_model, folder):
    core, algorithm, flags = CASES[name]
    job = {
        "flags": [*SHARING, *flags, *draft_flags(algorithm, tiny_model, folder)],
        "retract_every": 9,
        "seed": 17,
        "operations": OPERATIONS,
        "give_up_s": GIVE_UP_S,
        "result": str(folder / f"{name}.json"),
    }
    path = folder / f"{name}-job.json"
    path.write_text(json.dumps(job))
    environment = {**CHECKS, "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": core}
    return Script(HERE / "stress_by_hand.py", [tiny_model, path], environment)


@pytest.fixture(scope="module")
def histories(request, tiny_model, tmp_path_factory):
    """Runs the cases that were selected; returns the folder of their results."""
    here = [item for item in request.session.items if item.path == request.path]
    folder = tmp_path_factory.mktemp("stress")
    scripts = [script(item.callspec.params["name"], tiny_model, folder) for item in here]
    run_scripts(scripts, timeout_s=2 * GIVE_UP_S)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_every_page_has_one_owner_and_every_text_one_answer(name, histories):
    core, _, flags = CASES[name]
    found = json.loads((histories / f"{name}.json").read_text())
    print(name, found)
    assert found["core"].startswith("Rust") == (core == "rust")
    assert found["overlap"] is ("--disable-overlap-schedule" not in flags)
    assert found["wrong"] == []
    assert found["unanswered"] == []
    assert found["operations"] >= OPERATIONS
    assert found["retracted"] > 0 and found["ended"]["abort"] > 0
    assert found["reference"]["wrong"] == []
    assert found["reference"]["ties"] <= found["reference"]["tokens"] / 1000
    assert found["reference"]["tokens"] > OPERATIONS
    shared = found["metrics"]
    assert shared["shared_tokens"] > 0 and shared["served_tokens"] > 0
    assert shared["arrival_insertions"] > 0
    # What a retracted request had shared before needs no keeping.
    assert shared["saved_tokens"] > 0
