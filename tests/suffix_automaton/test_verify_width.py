# SPDX-License-Identifier: Apache-2.0
"""A step as wide as its longest draft: nothing changes but the work."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sgl_kernel_ext", reason="needs sgl-kernel-ext")
verify_width = pytest.importorskip("sglang.srt.speculative.suffix_automaton.verify_width")

TESTS = Path(__file__).parents[1]
WIDTH = 8
# A high threshold: most drafts are short, some are not drafts at all.
SAM = [
    *("--speculative-algorithm", "NGRAM", "--speculative-ngram-use-sam"),
    *("--speculative-num-draft-tokens", str(WIDTH)),
    *("--speculative-ngram-sam-threshold", "0.3"),
]


def test_results_are_padded_to_upstreams_width():
    told = SimpleNamespace(draft_token_num=2)
    result = SimpleNamespace(next_token_ids=torch.tensor([5, 6, 7, 8]), next_draft_input=told)
    verify_width.pad_result(result, n=2, width=2, full_width=4)
    assert result.next_token_ids.tolist() == [5, 6, 0, 0, 7, 8, 0, 0]
    assert told.accept_tokens.tolist() == [5, 6, 0, 0, 7, 8, 0, 0]
    assert told.draft_token_num == told.num_tokens_per_req == 4
    assert told.num_tokens_for_logprob_per_req == 4


def make_worker(**changes):
    worker = object.__new__(verify_width.FittedVerifyWorker)
    worker.max_batch_size, worker.draft_token_num, worker.device = 3, WIDTH, "cpu"
    backend = SimpleNamespace(verifies_any_width=True)
    worker.model_runner = SimpleNamespace(attn_backend=backend)
    vars(worker).update(changes)
    return worker


def test_buffers_follow_the_width():
    worker = make_worker()
    worker._init_preallocated_tensors()
    for width in (WIDTH, 3, 1):
        worker.draft_token_num = width
        for name in ("retrieve_indexes", "retrieve_next_token", "retrieve_next_sibling"):
            view = getattr(worker, f"{name}_batch")[2]
            assert view.shape == (2, width) and view.is_contiguous()
            assert view.data_ptr() == getattr(worker, name).data_ptr()
        assert worker.positions_batch[2].shape == (2 * width,)
        assert worker.draft_tokens_batch[2].shape == (2 * width,)
        assert worker.tree_mask_batch[2].shape == (2 * width * width,)


@pytest.mark.parametrize(
    ("worker", "batch", "narrow"),
    [
        ({}, {}, True),
        ({"follows_drafts": False}, {}, False),
        ({"model_runner": SimpleNamespace(attn_backend=object())}, {}, False),
        ({}, {"return_logprob": True}, False),
        ({}, {"return_hidden_states": True}, False),
    ],
)
def test_full_width_where_something_counts_on_it(worker, batch, narrow):
    asked = SimpleNamespace(**{"return_logprob": False, "return_hidden_states": False, **batch})
    assert make_worker(**worker)._may_narrow(asked) is narrow


def answer(model, folder, flags) -> dict:
    rng = random.Random(8)
    wave = []
    for length in (3, 40, 64, 90, 120, 150, 30, 33):
        phrase = [rng.randrange(33, 127) for _ in range(rng.choice((2, 9, 400)))]
        wave.append(((phrase * 200)[:length], 60))
    requests, result = folder / "requests.json", folder / "result.json"
    requests.write_text(json.dumps([wave, wave]))
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [
            *(sys.executable, str(TESTS / "platform" / "speculation_by_hand.py")),
            *(str(model), str(result), str(requests)),
            *("--chunked-prefill-size", "64", "--dtype", "float32", *flags),
        ],
        check=False,
        env={**os.environ, "PYTHONPATH": path},
        timeout=600,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(result.read_text())


@pytest.mark.slow
def test_output_is_plain_output_at_every_width(tiny_model, tmp_path):
    plain = answer(tiny_model, tmp_path, [])
    fitted = answer(tiny_model, tmp_path, SAM)
    assert fitted["output"] == plain["output"]
    assert fitted["ended"] == plain["ended"]
    widths = {int(width): steps for width, steps in fitted["widths"].items()}
    assert max(widths) <= WIDTH
    assert len(widths) > 2, widths
    full = answer(tiny_model, tmp_path, [*SAM, "--speculative-ngram-sam-verify-width", "full"])
    assert full["output"] == plain["output"]
    assert set(full["widths"]) == {str(WIDTH)}
    # Padding is no draft: without it as many steps, or nearly (a filler can be accepted).
    assert sum(widths.values()) <= 1.1 * sum(full["widths"].values())
