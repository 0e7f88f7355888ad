# SPDX-License-Identifier: Apache-2.0
"""Random histories on a real scheduler: one owner a page, one answer a text.

``SPEC_RADIX_SHARING_OPERATIONS=10000`` makes each history as long as the one the
documentation reports.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

HERE = Path(__file__).parent
OPERATIONS = int(os.environ.get("SPEC_RADIX_SHARING_OPERATIONS", "600"))
SHARING = ["--enable-spec-radix-sharing", "--spec-radix-sharing-interval", "8"]
NGRAM = ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "6"]
# Admits far more than the pool can hold to the end.
SMALL = ["--max-total-tokens", "600", "--schedule-conservativeness", "0.01"]
SMALL += ["--max-running-requests", "10"]
LARGE = ["--max-total-tokens", "2400", "--max-running-requests", "10"]
CHUNKED = ["--chunked-prefill-size", "64"]
NO_OVERLAP = ["--disable-overlap-schedule"]
PAGES = ["--page-size", "4"]
HICACHE = ["--enable-hierarchical-cache", "--hicache-ratio", "2", "--hicache-size", "0"]
HICACHE += ["--hicache-write-policy", "write_through", "--hicache-io-backend", "direct"]
HICACHE += ["--hicache-mem-layout", "page_first_direct"]

# Name: core, draft model, flags.
CASES = {
    "ngram": ("rust", None, [*NGRAM, *LARGE, *CHUNKED]),
    "ngram-small-pool-pages": ("python", None, [*NGRAM, *SMALL, *PAGES, *CHUNKED]),
    "ngram-no-overlap": ("python", None, [*NGRAM, *LARGE, *NO_OVERLAP]),
    "plain-small-pool-pages": ("rust", None, [*SMALL, *PAGES, *CHUNKED]),
    "eagle": ("rust", "head", [*LARGE, *CHUNKED]),
    "eagle-no-overlap-pages": ("python", "head", [*LARGE, *PAGES, *NO_OVERLAP]),
    "standalone-small-pool": ("python", "itself", [*SMALL, *CHUNKED]),
    "adaptive": ("python", None, [*NGRAM, *LARGE, "--radix-eviction-policy", "adaptive"]),
    "hicache": ("rust", None, [*LARGE, *PAGES, *HICACHE]),
}


def eagle_head(tiny_model, folder):
    path = HERE.parent / "platform" / "eagle_head.py"
    spec = importlib.util.spec_from_file_location("eagle_head_of_the_platform_tests", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make_eagle_head(tiny_model, folder)


def draft_flags(kind, tiny_model, folder):
    if kind is None:
        return []
    if kind == "itself":
        model, algorithm, width = tiny_model, "STANDALONE", (1, 4)
    else:
        model, algorithm, width = eagle_head(tiny_model, folder / "head"), "EAGLE", (2, 6)
    return [
        *("--speculative-algorithm", algorithm),
        *("--speculative-draft-model-path", str(model)),
        *("--speculative-num-steps", "3"),
        *("--speculative-eagle-topk", str(width[0])),
        *("--speculative-num-draft-tokens", str(width[1])),
    ]


@pytest.mark.parametrize("name", CASES)
def test_every_page_has_one_owner_and_every_text_one_answer(name, tiny_model, tmp_path):
    core, draft, flags = CASES[name]
    result = tmp_path / "result.json"
    # A small pool forces retractions of its own.
    forced_every = "9" if LARGE[1] in flags else "40"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
        "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": core,
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
        "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
        "SGLANG_TEST_RETRACT": "1",
        "SGLANG_TEST_RETRACT_INTERVAL": forced_every,
    }
    done = subprocess.run(
        [
            *(sys.executable, str(HERE / "stress_by_hand.py"), str(tiny_model), str(result)),
            *("17", str(OPERATIONS), *SHARING, *flags, *draft_flags(draft, tiny_model, tmp_path)),
        ],
        check=False,
        env=environment,
        timeout=1100,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(result.read_text())
    print(name, found)
    assert found["core"].startswith("Rust") == (core == "rust")
    assert found["overlap"] is ("--disable-overlap-schedule" not in flags)
    assert found["wrong"] == []
    assert found["unanswered"] == []
    assert found["operations"] >= OPERATIONS
    assert found["retracted"] > 0 and found["ended"]["abort"] > 0
    # Texts did meet, so the comparison of answers compared something.
    assert found["tokens"] > found["distinct"]
    shared = found["metrics"]
    assert shared["shared_tokens"] > 0 and shared["served_tokens"] > 0
    # What a retracted request had shared before needs no keeping.
    assert shared["saved_tokens"] > 0
