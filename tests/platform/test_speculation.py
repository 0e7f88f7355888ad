# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding answers what plain decoding answers, token for token."""

from __future__ import annotations

import pytest

from harness import ClosedLoop, Request, drive, require_success
from support.draft_heads import make_eagle_head
from support.speculation import (
    Abandoned,
    assert_json_schema_is_kept,
    assert_retraction_changes_nothing,
    varied_prompts,
)

from .conftest import make_prompts

pytestmark = pytest.mark.e2e

COMMON = {"chunked_prefill_size": 64, "max_total_tokens": 2048}
NGRAM = {**COMMON, "speculative_algorithm": "NGRAM", "schedule_conservativeness": 0.1}


LENGTHS = (1, 2, 5, 17, 30, 64, 65, 100, 128, 200, 40, 41, 42, 3, 90, 150)
PROMPTS = varied_prompts(21, LENGTHS)


@pytest.fixture(scope="module", params=["ngram", "standalone", "eagle"])
def speculating(request, serve_with, plain_output, tiny_model, tmp_path_factory):
    """A server a algorithm, together with the plain outputs its tests need.

    NGRAM drafts irregular trees; STANDALONE a chain, with the target as its own draft model
    and pages of 4; EAGLE a tree of two branches a level, with a random head.
    """
    outputs = [plain_output(p, 24) for p in PROMPTS]
    if request.param == "ngram":
        flags = NGRAM
    elif request.param == "standalone":
        flags = {
            **COMMON,
            "speculative_algorithm": "STANDALONE",
            "speculative_draft_model_path": str(tiny_model),
            "speculative_num_steps": 3,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": 4,
            "page_size": 4,
        }
    else:
        head = make_eagle_head(tiny_model, tmp_path_factory.mktemp("eagle"))
        flags = {
            **COMMON,
            "speculative_algorithm": "EAGLE",
            "speculative_draft_model_path": str(head),
            "speculative_num_steps": 3,
            "speculative_eagle_topk": 2,
            "speculative_num_draft_tokens": 6,
        }
    server = serve_with(flags, name=request.param)
    server.flush_cache()
    return request.param, server, outputs


def test_output_is_the_same_alone(speculating, tiny_model):
    name, server, outputs = speculating
    assert server.server_info()["disable_overlap_schedule"] is False
    lengths = []
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        answer = server.generate(prompt, 24, ignore_eos=True)
        assert answer["output_ids"] == output
        lengths.append(answer["meta_info"]["spec_accept_length"])
    assert max(lengths) > 1
    if name == "standalone":
        drafted = chain_accept_lengths(tiny_model, PROMPTS, outputs, steps=3)
        assert lengths == pytest.approx(drafted)


def chain_accept_lengths(model_path, prompts, outputs, *, steps):
    """Tokens a verification when the model drafts for itself.

    A draft model reads each token one position early, as an EAGLE head does, and so never sees
    the first: with the target as its own draft model some drafts are wrong, and which ones
    depends on every key the draft model has stored.
    """
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)

    def next_token(context):
        with torch.no_grad():
            return int(model(torch.tensor([context])).logits[0, -1].argmax())

    lengths = []
    for prompt, output in zip(prompts, outputs, strict=True):
        done, verifications = 1, 0
        while done < len(output):
            accepted = 0
            while accepted < steps and done + accepted < len(output):
                # As long as drafts are right, the draft's context is the output itself.
                context = [*prompt, *output[: done + accepted]][1:]
                if next_token(context) != output[done + accepted]:
                    break
                accepted += 1
            done += accepted + 1
            verifications += 1
        lengths.append(len(output) / verifications)
    return lengths


@pytest.mark.parametrize("concurrency", [4, 16])
def test_output_is_the_same_in_batches(speculating, concurrency):
    _, server, outputs = speculating
    server.flush_cache()
    requests = [Request(p, 24, sampling={"ignore_eos": True}) for p in PROMPTS]
    results = drive(server.url, requests, ClosedLoop(concurrency))
    require_success(results)
    assert [r.output_ids for r in results] == outputs


def test_prefix_hits_change_nothing(speculating):
    _, server, outputs = speculating
    hits = 0
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        answer = server.generate(prompt, 24, ignore_eos=True)
        assert answer["output_ids"] == output
        hits += answer["meta_info"]["cached_tokens"]
    assert hits > sum(map(len, PROMPTS)) / 2


def test_json_schema_stays_valid(speculating):
    assert_json_schema_is_kept(speculating[1])


def test_sampling_serves(speculating):
    _, server, _ = speculating
    prompt = PROMPTS[9]
    answer = server.generate(prompt, 16, temperature=0.8, top_p=0.9, top_k=40, ignore_eos=True)
    assert len(answer["output_ids"]) == 16


def test_abort_leaves_the_others_alone(speculating):
    _, server, outputs = speculating
    with Abandoned(server, [120]):
        assert server.generate(PROMPTS[7], 24, ignore_eos=True)["output_ids"] == outputs[7]
    assert server.generate(PROMPTS[9], 24, ignore_eos=True)["output_ids"] == outputs[9]


def test_retraction_changes_nothing(serve_with, plain_output):
    prompts = make_prompts(6, 60, seed=13)
    alone = [plain_output(p, 200, ignore_eos=False) for p in prompts]
    server = serve_with({**NGRAM, "max_total_tokens": 1024}, name="ngram-small")
    requests = [Request(p, 200) for p in prompts]
    assert_retraction_changes_nothing(server, requests, alone)
