# SPDX-License-Identifier: Apache-2.0
"""Speculation beside other features: greedy output is plain output.

The real scheduler with the real model, without HTTP: what these combinations touch lies
behind it.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from support.copies import Script, run_scripts
from support.draft_heads import make_eagle_head

pytestmark = pytest.mark.slow
pytest.importorskip("sglang.srt.platforms.cpu_reference")

SCRIPT = Path(__file__).with_name("speculation_by_hand.py")
CONTEXT = 200
# Chunks force every longer prompt through several extensions before its first draft.
COMMON = ["--chunked-prefill-size", "64", "--context-length", str(CONTEXT), "--dtype", "float32"]
NGRAM = ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8"]
# The device holds three of the longer prompts.
SMALL = ["--max-total-tokens", "640"]
HICACHE = ["--enable-hierarchical-cache", "--hicache-ratio", "4"]
HICACHE += ["--hicache-write-policy", "write_through"]

# Algorithm with a draft model, flags.
CASES: dict[str, tuple[str | None, list[str]]] = {
    "ngram-pages": (None, [*NGRAM, "--page-size", "16"]),
    "ngram-hicache": (None, [*NGRAM, *SMALL, *HICACHE]),
    "eagle-tree-pages": ("EAGLE", ["--page-size", "4"]),
    "standalone-tree": ("STANDALONE", []),
    "standalone-tree-pages": ("STANDALONE", ["--page-size", "4"]),
}


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


def draft_tree(algorithm: str | None, model: Path | None) -> list[str]:
    """Flags of a draft model and a tree of two branches a level."""
    if algorithm is None:
        return []
    return [
        *("--speculative-algorithm", algorithm, "--speculative-draft-model-path", str(model)),
        *("--speculative-num-steps", "3", "--speculative-eagle-topk", "2"),
        *("--speculative-num-draft-tokens", "6"),
    ]


@pytest.fixture(scope="module")
def found(request, tiny_model, tmp_path_factory) -> dict[str, dict]:
    """What plain decoding and the selected cases answered, by name."""
    folder = tmp_path_factory.mktemp("combinations")
    requests = folder / "requests.json"
    requests.write_text(json.dumps(waves()))
    drafts = {"EAGLE": make_eagle_head(tiny_model, folder / "head"), "STANDALONE": tiny_model}
    here = [item for item in request.session.items if item.path == request.path]
    flags = {"plain": COMMON}
    for name in (item.callspec.params["name"] for item in here):
        algorithm, more = CASES[name]
        flags[name] = [*COMMON, *more, *draft_tree(algorithm, drafts.get(algorithm))]
    results = {name: folder / f"{name}.json" for name in flags}
    run_scripts(
        Script(SCRIPT, [tiny_model, results[name], requests, *flags[name]]) for name in flags
    )
    answers = {name: json.loads(path.read_text()) for name, path in results.items()}
    plain = answers["plain"]
    assert plain["widths"] == {}
    # The context's end was reached, not the 500 tokens that were asked for.
    for place in (10, 11):
        assert CONTEXT - 180 - 4 < len(plain["output"][f"0-{place}"]) <= CONTEXT - 180
        assert plain["ended"][f"0-{place}"] == "length"
    return answers


@pytest.mark.parametrize("name", CASES)
def test_output_is_plain_output(name, found):
    plain, spoken = found["plain"], found[name]
    assert spoken["overlap"] is True
    assert spoken["widths"], "nothing was verified"
    assert spoken["ended"] == plain["ended"]
    assert spoken["output"] == plain["output"]
    again = [spoken["cached"][f"1-{place}"] for place in (6, 7, 8)]
    assert min(again) >= 128, "the second wave hits what the first left"
