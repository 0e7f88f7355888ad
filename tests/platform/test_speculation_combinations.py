# SPDX-License-Identifier: Apache-2.0
"""Speculation beside other features: greedy output is plain output.

The real scheduler with the real model in a process of its own, without HTTP: what these
combinations touch lies behind it, and a start costs a quarter of a server's.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from support.draft_heads import make_eagle_head

pytestmark = pytest.mark.slow
pytest.importorskip("sglang.srt.platforms.cpu_reference")

HERE = Path(__file__).parent
CONTEXT = 200
# Chunks force every longer prompt through several extensions before its first draft.
COMMON = ["--chunked-prefill-size", "64", "--context-length", str(CONTEXT), "--dtype", "float32"]


def waves() -> list[list[tuple[list[int], int]]]:
    """Two equal waves, the second of which hits what the first left in the caches.

    Repetitive and random prompts. The last two run into the end of the context: their drafts
    reach beyond it.
    """
    rng = random.Random(3)
    wave = []
    for length in (1, 2, 17, 63, 64, 65, 150, 150, 150, 130):
        phrase = [rng.randrange(33, 127) for _ in range(rng.choice((1, 3, 8, 500)))]
        wave.append(((phrase * 200)[:length], 24))
    for phrase in ([65], [rng.randrange(33, 127) for _ in range(500)]):
        wave.append(((phrase * 200)[:180], 500))
    return [wave, wave]


def answer(model, folder, flags) -> dict:
    requests, result = folder / "requests.json", folder / "result.json"
    requests.write_text(json.dumps(waves()))
    script = [sys.executable, str(HERE / "speculation_by_hand.py")]
    path = os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [*script, str(model), str(result), str(requests), *COMMON, *flags],
        check=False,
        env={**os.environ, "PYTHONPATH": path},
        timeout=600,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(result.read_text())


@pytest.fixture(scope="module")
def plain(tiny_model, tmp_path_factory) -> dict:
    found = answer(tiny_model, tmp_path_factory.mktemp("plain"), [])
    assert found["widths"] == {}
    # The context's end was reached, not the 500 tokens that were asked for.
    for place in (10, 11):
        assert CONTEXT - 180 - 4 < len(found["output"][f"0-{place}"]) <= CONTEXT - 180
        assert found["ended"][f"0-{place}"] == "length"
    return found


NGRAM = ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8"]
EAGLE_TREE = [
    *("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "6"),
]


@pytest.mark.parametrize("name", ["ngram-pages", "eagle-tree-pages"])
def test_output_is_plain_output(name, plain, tiny_model, tmp_path):
    if name == "ngram-pages":
        flags = [*NGRAM, "--page-size", "16"]
    else:
        head = make_eagle_head(tiny_model, tmp_path / "head")
        flags = [*EAGLE_TREE, "--speculative-draft-model-path", str(head), "--page-size", "4"]
    found = answer(tiny_model, tmp_path, flags)
    assert found["overlap"] is True
    assert found["widths"], "nothing was verified"
    assert found["ended"] == plain["ended"]
    assert found["output"] == plain["output"]
    again = [found["cached"][f"1-{place}"] for place in (6, 7, 8)]
    assert min(again) >= 128, "the second wave hits what the first left"
