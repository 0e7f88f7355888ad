# SPDX-License-Identifier: Apache-2.0
"""10,000 random operations on each core: one owner a page, the right text in every slot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = 10_000 // 4  # for each of four shapes on each core


def test_random_operations_on_the_real_tree(tiny_model, tmp_path):
    result = tmp_path / "result.json"
    script = Path(__file__).with_name("pages_by_hand.py")
    folders = [ROOT / "benchmark" / "sglang_optimization", ROOT / "tests"]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(script), str(tiny_model), str(result), str(OPERATIONS)],
        env={**os.environ, "PYTHONPATH": path},
        timeout=1000,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(result.read_text())
    assert len(found) == 8
    for name, counts in found.items():
        print(name, counts)
        for what in ("admit", "round", "retract", "finish", "abort", "weights", "arrival"):
            assert counts[what] > 0, (name, what)
        for what in ("shared", "served", "kept", "saved"):
            assert counts[f"{what}_tokens"] > 0, (name, what)
        assert counts["arrival_insertions"] > 0, name
    for shape in ("pages of 1, tokens", "pages of 4, tokens", "pages of 1, bigrams"):
        # Both cores do the same.
        assert found[f"rust, {shape}"] == found[f"python, {shape}"]
