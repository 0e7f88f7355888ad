# SPDX-License-Identifier: Apache-2.0
"""What works on the reference CPU platform, on a server with its default configuration."""

from __future__ import annotations

import json
import threading
import time

import pytest

from harness import ClosedLoop, Request, drive, require_success

from .conftest import make_prompts

pytestmark = pytest.mark.e2e


def test_defaults_of_the_platform(plain):
    info = plain.server_info()
    assert info["device"] == "cpu"
    assert info["attention_backend"] == "cpu_reference"
    assert info["sampling_backend"] == "pytorch"
    assert info["disable_overlap_schedule"] is False


def test_greedy_output_repeats_and_depends_on_the_prompt(plain, plain_output):
    prompts = make_prompts(6, 20, seed=1)
    outputs = [plain_output(p, 24) for p in prompts]
    assert len({tuple(x) for x in outputs}) == len(prompts)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert plain.generate(prompt, 24, ignore_eos=True)["output_ids"] == output


def test_batches_give_what_requests_alone_give(plain, plain_output):
    # Lengths from 1 to 300: padded decode batches, chunked and mixed prefill.
    prompts = [p[:n] for n, p in zip((1, 2, 9, 33, 64, 65, 150, 300), make_prompts(8, 300, seed=2))]
    alone = [plain_output(p, 16) for p in prompts]
    plain.flush_cache()
    requests = [Request(p, 16, sampling={"ignore_eos": True}) for p in prompts]
    results = drive(plain.url, requests, ClosedLoop(8))
    require_success(results)
    assert [r.output_ids for r in results] == alone


def test_prefix_hits_change_nothing(plain, plain_output):
    stem = make_prompts(1, 140, seed=3)[0]
    tails = make_prompts(3, 11, seed=4)
    alone = [plain_output(stem + tail, 12) for tail in tails]
    plain.flush_cache()
    plain.generate(stem, 1)
    for tail, output in zip(tails, alone, strict=True):
        answer = plain.generate(stem + tail, 12, ignore_eos=True)
        assert answer["meta_info"]["cached_tokens"] >= len(stem)
        assert answer["output_ids"] == output


def test_flush_cache_empties_it(plain):
    prompt = make_prompts(1, 50, seed=5)[0]
    plain.generate(prompt, 1)
    assert plain.generate(prompt, 1)["meta_info"]["cached_tokens"] > 0
    plain.flush_cache()
    assert plain.generate(prompt, 1)["meta_info"]["cached_tokens"] == 0


def test_streaming_delivers_the_tokens_one_by_one(plain, plain_output):
    prompt = make_prompts(1, 30, seed=6)[0]
    output = plain_output(prompt, 10)
    response = plain.request(
        "POST",
        "/generate",
        json={
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": 10, "ignore_eos": True},
            "stream": True,
        },
        stream=True,
    )
    events = [
        line.removeprefix(b"data: ") for line in response.iter_lines() if line.startswith(b"data: ")
    ]
    assert events[-1] == b"[DONE]"
    lengths = [len(json.loads(x)["output_ids"]) for x in events[:-1]]
    assert lengths == sorted(lengths) and len(lengths) >= 5
    assert json.loads(events[-2])["output_ids"] == output


def test_openai_chat(plain):
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
    }
    first, second = (plain.post("/v1/chat/completions", body) for _ in range(2))
    assert first["choices"][0]["message"]["content"] == second["choices"][0]["message"]["content"]
    assert first["usage"]["completion_tokens"] == 8
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_json_schema_constrains_the_output(plain):
    schema = {
        "type": "object",
        "properties": {"size": {"enum": ["s", "m", "l"]}, "count": {"enum": [1, 2]}},
        "required": ["size", "count"],
        "additionalProperties": False,
    }
    answer = plain.generate("An order: ", 80, json_schema=json.dumps(schema))
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"
    value = json.loads(answer["text"])
    assert value["size"] in "sml" and value["count"] in (1, 2)


def test_log_probabilities_are_those_of_the_model(plain, tiny_model):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    prompt = make_prompts(1, 40, seed=7)[0]
    answer = plain.post(
        "/generate",
        {
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True},
            "return_logprob": True,
        },
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    output = answer["output_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == output
    ours = torch.tensor([x[0] for x in answer["meta_info"]["output_token_logprobs"]])
    theirs = torch.log_softmax(logits, -1)[range(12), output]
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_abort_ends_a_request_and_leaves_the_server_usable(plain, plain_output):
    prompt = make_prompts(1, 20, seed=8)[0]
    output = plain_output(prompt, 8)
    answer = {}

    def ask():
        answer.update(
            plain.post(
                "/generate",
                {
                    "rid": "to-be-aborted",
                    "text": "x",
                    "sampling_params": {
                        "temperature": 0,
                        "max_new_tokens": 2000,
                        "ignore_eos": True,
                    },
                },
                timeout=300,
            )
        )

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(1.0)
    deadline = time.monotonic() + 120
    while thread.is_alive() and time.monotonic() < deadline:
        plain.request("POST", "/abort_request", json={"rid": "to-be-aborted"})
        thread.join(0.5)
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert answer["meta_info"]["completion_tokens"] < 2000
    assert plain.generate(prompt, 8, ignore_eos=True)["output_ids"] == output


def test_metrics_count_what_was_served(plain):
    prompt = make_prompts(1, 77, seed=9)[0]
    plain.flush_cache()
    with plain.measured() as changes:
        plain.generate(prompt, 5, ignore_eos=True)
        plain.generate(prompt, 5, ignore_eos=True)
    change = changes[0]
    assert change.total("sglang:prompt_tokens_total") == 2 * 77
    assert change.total("sglang:generation_tokens_total") == 2 * 5
    assert change.total("sglang:cached_tokens_total") == 76
    assert change.total("sglang:time_to_first_token_seconds_count") == 2
