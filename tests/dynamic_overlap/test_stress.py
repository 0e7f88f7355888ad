# SPDX-License-Identifier: Apache-2.0
"""Decisions flipped at random lose, repeat and reorder nothing.

Each run is a real scheduler in a process of its own (stress_driver.py). The reference
runs without overlap and without speculation; greedy output is the same under every way
of deciding, with and without speculation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.draft_heads import make_eagle_head

pytest.importorskip("torch")
pytest.importorskip(
    "sglang.srt.managers.dynamic_overlap", reason="topic dynamic-overlap is not in this build"
)
pytestmark = pytest.mark.slow

DRIVER = Path(__file__).with_name("stress_driver.py")
SEED = 1


def run(model: Path, folder: Path, way: str, flags: list[str]) -> dict:
    """What one run of the driver found."""
    path = folder / "result.json"
    ended = subprocess.run(
        [sys.executable, DRIVER, model, path, str(SEED), way, *flags],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stdout[-4000:]
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def reference(tiny_model, tmp_path_factory) -> dict:
    """Output of the loop that never overlaps."""
    found = run(tiny_model, tmp_path_factory.mktemp("reference"), "off", [])
    assert found["overlap"] is False
    assert set(found["ended"].values()) == {"length", "stop", "abort"}
    return found


@pytest.fixture(scope="module", params=["plain", "ngram", "eagle"])
def flipped(request, reference, tiny_model, tmp_path_factory) -> dict:
    """Output of the overlap loop with random decisions."""
    folder = tmp_path_factory.mktemp(request.param)
    speculation: list[str] = []
    if request.param == "ngram":
        speculation = ["--speculative-algorithm", "NGRAM"]
    elif request.param == "eagle":
        head = make_eagle_head(tiny_model, tmp_path_factory.mktemp("head"))
        speculation = ["--speculative-algorithm", "EAGLE"]
        speculation += ["--speculative-draft-model-path", str(head)]
        speculation += ["--speculative-num-steps", "3", "--speculative-eagle-topk", "2"]
        speculation += ["--speculative-num-draft-tokens", "6"]
    return run(tiny_model, folder, "flip", speculation) | {"name": request.param}


def test_every_way_of_deciding_was_met(flipped):
    early, late, overlapped = flipped["flips"]
    assert flipped["overlap"] is True
    assert min(early, late, overlapped) > 20
    assert flipped["retracted"] > 0


def test_output_is_that_of_a_run_without_overlap(flipped, reference):
    assert set(flipped["ended"]) == set(reference["ended"])
    for rid, ended in reference["ended"].items():
        expected, got = reference["output"].get(rid, []), flipped["output"].get(rid, [])
        if rid.startswith("abort"):
            # An abort arrives at another token; what was written until then is the same.
            shorter = min(len(expected), len(got))
            assert got[:shorter] == expected[:shorter], rid
        else:
            assert got == expected, rid
            assert flipped["ended"][rid] == ended, rid


def test_no_kv_slot_is_lost(flipped):
    assert flipped["free"] == flipped["pool"]


def test_ngram_drafts_from_the_true_context(flipped):
    if flipped["name"] != "ngram":
        assert "contexts" not in flipped  # only NGRAM drafts from tokens
        return
    assert flipped["contexts"] > 100
    assert flipped["wrong_contexts"] == []
