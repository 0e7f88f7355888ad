# SPDX-License-Identifier: Apache-2.0
"""On a real server: greedy output with suffix-automaton drafts is plain output."""

from __future__ import annotations

import random

import pytest

from harness import ClosedLoop, Request, drive, require_success
from support.speculation import (
    Abandoned,
    assert_json_schema_is_kept,
    assert_retraction_changes_nothing,
    varied_prompts,
)

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
LENGTHS = (1, 2, 9, 33, 64, 65, 120, 200, 40, 41, 90, 150)
PROMPTS = varied_prompts(5, LENGTHS, phrases=(1, 4, 9, 300))
SHORT = [Request(p, NEW_TOKENS, sampling={"ignore_eos": True}) for p in PROMPTS]
RNG = random.Random(6)
LONG = [Request([RNG.randrange(33, 127) for _ in range(60)], 200) for _ in range(6)]
# Fills the memory of the server with drafts but for what the step under way and the next one
# reserve: without room for their width upstream ends the request.
RESERVED = 4 * 12
FILLING = Request((PROMPTS[7] * 5)[:800], 1024 - 800 - RESERVED, sampling={"ignore_eos": True})


@pytest.fixture(scope="module")
def expected(serve_with) -> list[list[int]]:
    """Plain outputs of SHORT, LONG and FILLING."""
    server = serve_with(PLAIN, name="plain")
    server.flush_cache()
    results = drive(server.url, [*SHORT, *LONG, FILLING], ClosedLoop(1))
    require_success(results)
    return [r.output_ids for r in results]


@pytest.fixture(scope="module")
def server(expected, serve_with):
    running = serve_with(SAM, name="ngram-sam")
    running.flush_cache()
    return running


def ask(server, place: int) -> dict:
    return server.generate(PROMPTS[place], NEW_TOKENS, ignore_eos=True)


@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_output_is_plain_output(server, expected, concurrency):
    results = drive(server.url, SHORT, ClosedLoop(concurrency))  # streamed
    require_success(results)
    assert [r.output_ids for r in results] == expected[: len(SHORT)]


def test_drafts_are_accepted_with_overlap_on(server, expected):
    assert server.server_info()["disable_overlap_schedule"] is False
    server.flush_cache()
    lengths = []
    for place, output in enumerate(expected[: len(SHORT)]):
        answer = ask(server, place)
        assert answer["output_ids"] == output
        lengths.append(answer["meta_info"]["spec_accept_length"])
    assert max(lengths) > 1.5


def test_the_text_of_a_cached_prompt_is_known_too(server, expected):
    """A radix hit shortens the prefill, not what is drafted from."""
    server.flush_cache()
    first, again = ask(server, 7), ask(server, 7)
    assert again["output_ids"] == first["output_ids"] == expected[7]
    assert again["meta_info"]["cached_tokens"] > 100
    assert again["meta_info"]["spec_accept_length"] >= first["meta_info"]["spec_accept_length"]


def test_retraction_changes_nothing(server, expected):
    assert_retraction_changes_nothing(server, LONG, expected[len(SHORT) : -1])


def test_json_schema_stays_valid(server):
    assert_json_schema_is_kept(server)


def test_a_cancelled_request_and_its_retry_change_no_other(server, expected):
    """sglang issue 23392: with a shared prefix, others' output was corrupted."""
    for _ in range(2):
        with Abandoned(server, PROMPTS[7][:150], 600):
            assert ask(server, 7)["output_ids"] == expected[7]
        assert ask(server, 7)["output_ids"] == expected[7]


def test_a_request_may_fill_the_memory(server, expected):
    """TRT-LLM issue 16826: drafts past the longest text crashed."""
    (ended,) = drive(server.url, [FILLING], ClosedLoop(1))
    require_success([ended])
    assert ended.output_ids == expected[-1]
    assert ask(server, 3)["output_ids"] == expected[3]


def test_a_used_request_id_serves_again(server, expected):
    for _ in range(2):
        body = {
            "rid": "again",
            "input_ids": PROMPTS[7],
            "sampling_params": {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True},
        }
        assert server.post("/generate", body)["output_ids"] == expected[7]


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
