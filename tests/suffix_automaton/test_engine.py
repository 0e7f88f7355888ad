# SPDX-License-Identifier: Apache-2.0
"""On a real server: greedy output with suffix-automaton drafts is plain output."""

from __future__ import annotations

import json
import random

import pytest

from harness import ClosedLoop, Request, drive, require_success

pytest.importorskip("sgl_kernel_ext", reason="needs sgl-kernel-ext")
pytest.importorskip(
    "sglang.srt.speculative.suffix_automaton", reason="topic ngram-sam is not in this build"
)
pytestmark = pytest.mark.e2e

PLAIN = {"chunked_prefill_size": 64}
SAM = {
    **PLAIN,
    "speculative_algorithm": "NGRAM",
    "speculative_ngram_use_sam": True,
    # Small enough for retraction, admitted as if requests stopped early.
    "max_total_tokens": 1024,
    "schedule_conservativeness": 0.1,
}
NEW_TOKENS = 24


def varied_prompts() -> list[list[int]]:
    """Repetitive and random prompts of 1 to 200 tokens: long, short and failed drafts."""
    rng = random.Random(5)
    prompts = []
    for length in (1, 2, 9, 33, 64, 65, 120, 200, 40, 41, 90, 150):
        phrase = [rng.randrange(33, 127) for _ in range(rng.choice((1, 4, 9, 300)))]
        prompts.append((phrase * 200)[:length])
    return prompts


def long_requests() -> list[Request]:
    rng = random.Random(6)
    return [Request([rng.randrange(33, 127) for _ in range(60)], 200) for _ in range(6)]


@pytest.fixture(scope="module")
def expected(serve_with) -> tuple[list, list]:
    """Plain outputs of the varied prompts and of the long requests."""
    server = serve_with(PLAIN, name="plain")
    server.flush_cache()
    short = [Request(p, NEW_TOKENS, sampling={"ignore_eos": True}) for p in varied_prompts()]
    results = drive(server.url, short + long_requests(), ClosedLoop(1))
    require_success(results)
    outputs = [r.output_ids for r in results]
    return outputs[: len(short)], outputs[len(short) :]


@pytest.fixture(scope="module")
def server(expected, serve_with):
    running = serve_with(SAM, name="ngram-sam")
    running.flush_cache()
    return running


@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_output_is_plain_output(server, expected, concurrency):
    requests = [Request(p, NEW_TOKENS, sampling={"ignore_eos": True}) for p in varied_prompts()]
    results = drive(server.url, requests, ClosedLoop(concurrency))  # streamed
    require_success(results)
    assert [r.output_ids for r in results] == expected[0]


def test_drafts_are_accepted_with_overlap_on(server, expected):
    assert server.server_info()["disable_overlap_schedule"] is False
    server.flush_cache()
    lengths = []
    for prompt, output in zip(varied_prompts(), expected[0], strict=True):
        answer = server.generate(prompt, NEW_TOKENS, ignore_eos=True)
        assert answer["output_ids"] == output
        lengths.append(answer["meta_info"]["spec_accept_length"])
    assert max(lengths) > 1.5


def test_retraction_changes_nothing(server, expected):
    # The counter appears with the first retraction.
    before = server.metrics().get("sglang:num_retracted_requests_total")
    results = drive(server.url, long_requests(), ClosedLoop(6))
    require_success(results)
    assert [r.output_ids for r in results] == expected[1]
    assert server.metrics().get("sglang:num_retracted_requests_total") > before


def test_json_schema_stays_valid(server):
    schema = {
        "type": "object",
        "properties": {"size": {"enum": ["s", "m", "l"]}, "count": {"enum": [1, 2]}},
        "required": ["size", "count"],
        "additionalProperties": False,
    }
    answer = server.generate("An order: ", 80, json_schema=json.dumps(schema))
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"
    assert set(json.loads(answer["text"])) == {"size", "count"}


def test_a_used_request_id_serves_again(server, expected):
    for _ in range(2):
        body = {
            "rid": "again",
            "input_ids": varied_prompts()[7],
            "sampling_params": {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True},
        }
        assert server.post("/generate", body)["output_ids"] == expected[0][7]


def test_a_chat_is_answered_and_metrics_say_what_is_held(server):
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "ab ab ab ab"}],
        "temperature": 0,
        "max_tokens": 40,
    }
    assert server.post("/v1/chat/completions", body)["usage"]["completion_tokens"] > 0
    metrics = server.metrics()
    assert metrics.total("sglang:ngram_sam_drafted_total") > 0
    assert metrics.total("sglang:ngram_sam_accepted_total") > 0
    assert metrics.total("sglang:ngram_sam_shared_tokens") > 0
