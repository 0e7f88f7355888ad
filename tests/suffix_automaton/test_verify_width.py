# SPDX-License-Identifier: Apache-2.0
"""A step as wide as its longest draft: nothing changes but the work."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.copies import Script, run_scripts

torch = pytest.importorskip("torch")
pytest.importorskip("sgl_kernel_ext", reason="needs sgl-kernel-ext")
verify_width = pytest.importorskip("sglang.srt.speculative.suffix_automaton.verify_width")

SCRIPT = Path(__file__).parents[1] / "platform" / "speculation_by_hand.py"
WIDTH = 8
# A high threshold: most drafts are short, some are not drafts at all.
SAM = [
    *("--speculative-algorithm", "NGRAM", "--speculative-ngram-use-sam"),
    *("--speculative-num-draft-tokens", str(WIDTH)),
    *("--speculative-ngram-sam-threshold", "0.3"),
]


# The device holds a few of the prompts; what comes back comes from the host.
HICACHE = ["--max-total-tokens", "640", "--enable-hierarchical-cache", "--hicache-ratio", "4"]
RUNS = {
    "plain": [],
    "fitted": SAM,
    "full": [*SAM, "--speculative-ngram-sam-verify-width", "full"],
    "hicache": [*SAM, *HICACHE, "--hicache-write-policy", "write_through", "--page-size", "4"],
}


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


@pytest.fixture(scope="module")
def results(tiny_model, tmp_path_factory) -> dict[str, dict]:
    """What each of ``RUNS`` answered."""
    rng = random.Random(8)
    wave = []
    for length in (3, 40, 64, 90, 120, 150, 30, 33):
        phrase = [rng.randrange(33, 127) for _ in range(rng.choice((2, 9, 400)))]
        wave.append(((phrase * 200)[:length], 60))
    folder = tmp_path_factory.mktemp("widths")
    requests = folder / "requests.json"
    requests.write_text(json.dumps([wave, wave]))
    paths = {name: folder / f"{name}.json" for name in RUNS}
    common = ["--chunked-prefill-size", "64", "--dtype", "float32"]
    run_scripts(
        Script(SCRIPT, [tiny_model, paths[name], requests, *common, *flags])
        for name, flags in RUNS.items()
    )
    return {name: json.loads(path.read_text()) for name, path in paths.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fitted", "full", "hicache"])
def test_output_is_plain_output(results, name):
    assert results[name]["output"] == results["plain"]["output"]
    assert results[name]["ended"] == results["plain"]["ended"]


@pytest.mark.slow
def test_steps_are_as_wide_as_their_drafts(results):
    widths = {int(width): steps for width, steps in results["fitted"]["widths"].items()}
    assert max(widths) <= WIDTH
    assert len(widths) > 2, widths
    full = results["full"]["widths"]
    assert set(full) == {str(WIDTH)}
    # Padding is no draft: without it as many steps, or nearly (a filler can be accepted).
    assert sum(widths.values()) <= 1.1 * sum(full.values())
