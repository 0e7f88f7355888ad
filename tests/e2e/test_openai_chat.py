# SPDX-License-Identifier: Apache-2.0
"""The OpenAI endpoints, streaming and the prefix cache, as a client sees them."""

from __future__ import annotations

import json

import pytest

from harness import Request, ServerError, drive

pytestmark = pytest.mark.e2e

QUESTION = [
    {"role": "system", "content": "You are a test. " * 8},
    {"role": "user", "content": "Say something about caches."},
]


@pytest.fixture(scope="module")
def server(serve_with):
    flags = {"radix_eviction_policy": "adaptive", "max_total_tokens": 3072}
    running = serve_with(flags, name="adaptive", cold=True)  # as a user starts it
    running.flush_cache()
    return running


def chat(server, **fields):
    body = {"model": "default", "messages": QUESTION, "temperature": 0, "max_tokens": 12, **fields}
    return server.post("/v1/chat/completions", body)


def test_the_model_is_listed(server):
    (model,) = server.get("/v1/models")["data"]
    assert model["object"] == "model"


def test_a_chat_answers_with_usage(server):
    answer = chat(server)
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert len(answer["choices"][0]["message"]["content"]) == 12  # a token is a byte
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 12


def test_the_same_chat_again_is_served_from_the_cache(server):
    server.flush_cache()
    first, second = chat(server), chat(server)
    prompt = first["usage"]["prompt_tokens"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    # At least one token is computed, for its logits.
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == prompt - 1
    assert second["choices"][0]["message"] == first["choices"][0]["message"]


def test_streamed_text_equals_the_whole_answer(server):
    (streamed,) = drive(server.url, [Request(tuple(QUESTION), 12)])
    assert streamed.error is None
    assert streamed.text == chat(server)["choices"][0]["message"]["content"]
    assert len(streamed.itl_s) > 0


def test_text_ids_and_chat_share_one_prefix_cache(server):
    """A byte-level tokenizer makes the ids of a text its bytes."""
    text = "a prompt that is long enough to be found again"
    by_text = server.generate(text, 8)
    by_ids = server.generate(list(text.encode()), 8)
    assert by_ids["output_ids"] == by_text["output_ids"]
    assert by_ids["meta_info"]["cached_tokens"] == len(text) - 1


def test_several_choices_and_stop_strings(server):
    whole = chat(server)["choices"][0]["message"]["content"]
    stop = whole[5]
    cut = chat(server, stop=[stop])["choices"][0]
    assert cut["message"]["content"] == whole[: whole.index(stop)]
    assert cut["finish_reason"] == "stop"
    both = chat(server, n=2)["choices"]
    assert [choice["message"]["content"] for choice in both] == [whole, whole]


def test_log_probabilities_are_finite_and_ordered(server):
    answer = chat(server, logprobs=True, top_logprobs=3, max_tokens=4)
    for token in answer["choices"][0]["logprobs"]["content"]:
        top = [candidate["logprob"] for candidate in token["top_logprobs"]]
        assert top == sorted(top, reverse=True)
        assert token["logprob"] == pytest.approx(top[0]) and -20 < token["logprob"] <= 0


def test_a_json_schema_is_kept(server):
    schema = {
        "type": "object",
        "properties": {"level": {"enum": ["low", "high"]}},
        "required": ["level"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "level", "schema": schema}}
    answer = chat(server, response_format=wanted, max_tokens=64)
    assert json.loads(answer["choices"][0]["message"]["content"])["level"] in ("low", "high")


def test_a_prompt_longer_than_the_pool_is_refused_and_serving_goes_on(server):
    with pytest.raises(ServerError, match="gave 400"):
        server.generate([65] * 9000, 4)
    assert server.generate("still there?", 2)["meta_info"]["completion_tokens"] == 2
