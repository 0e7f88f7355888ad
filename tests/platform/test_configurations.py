# SPDX-License-Identifier: Apache-2.0
"""Other configurations answer what the default one answers, token for token."""

from __future__ import annotations

import pytest

from harness import ClosedLoop, Request, drive, require_success

from .conftest import make_prompts

pytestmark = pytest.mark.e2e

# Non-overlap loop, Python tree core and pages, with a pool that four requests overfill.
PAGED = {
    "disable_overlap_schedule": True,
    "page_size": 16,
    "max_total_tokens": 1024,
    "chunked_prefill_size": 64,
    "schedule_conservativeness": 0.1,
}
PYTHON_CORE = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}


def test_pages_python_core_and_normal_loop(serve_with, plain_output):
    stem = make_prompts(1, 100, seed=11)[0]
    prompts = [stem[:n] + tail for n, tail in zip((100, 96, 40, 0), make_prompts(4, 21, seed=12))]
    alone = [plain_output(p, 12) for p in prompts]
    server = serve_with(PAGED, env=PYTHON_CORE, name="paged")
    server.flush_cache()
    cached = []
    for prompt, output in zip(prompts, alone, strict=True):
        answer = server.generate(prompt, 12, ignore_eos=True)
        assert answer["output_ids"] == output
        cached.append(answer["meta_info"]["cached_tokens"])
    assert cached == [0, 96, 32, 0], "hits end at a page boundary"


def test_retraction_changes_nothing(serve_with, plain_output):
    prompts = make_prompts(6, 60, seed=13)
    # Without ignore_eos, with which admission reserves the whole output: then
    # no more runs than fits and nothing is ever retracted.
    alone = [plain_output(p, 200, ignore_eos=False) for p in prompts]
    assert sum(60 + len(x) for x in alone) > 1024 + 200, "must overfill the pool"
    server = serve_with(PAGED, env=PYTHON_CORE, name="paged")
    server.flush_cache()
    requests = [Request(p, 200) for p in prompts]
    results = drive(server.url, requests, ClosedLoop(len(requests)))
    require_success(results)
    # The counter appears with the first retraction.
    assert server.metrics().total("sglang:num_retracted_requests_total") > 0
    assert [r.output_ids for r in results] == alone


def test_bfloat16_serves(serve_with, tiny_model):
    """Close to float32: the first token of most prompts is the same."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    prompts = make_prompts(6, 50, seed=15)
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.no_grad():
        exact = [int(model(torch.tensor([p])).logits[0, -1].argmax()) for p in prompts]
    server = serve_with({"dtype": "bfloat16", "chunked_prefill_size": 64}, name="bf16")
    same = 0
    for prompt, token in zip(prompts, exact, strict=True):
        output = server.generate(prompt, 12, ignore_eos=True)["output_ids"]
        assert output == server.generate(prompt, 12, ignore_eos=True)["output_ids"]
        same += output[0] == token
    assert same >= 4
