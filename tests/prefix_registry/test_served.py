# SPDX-License-Identifier: Apache-2.0
"""A prefill and a decode server with the registry, on loopback."""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import ServerError, ServerSpec, free_port
from harness.disaggregation import disaggregated_pair, generate_on_pair, missing_transfer_engine

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        missing_transfer_engine() is not None, reason=missing_transfer_engine() or ""
    ),
]

PAGE = 16
FLAGS = {"page_size": PAGE, "chunked_prefill_size": 64, "served_model_name": "tiny"}
TOKENS = 8


def prompt(length: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(33, 127) for _ in range(length)]


PROMPTS = [prompt(n, n) for n in (15, 16, 17, 100, 160)] + [prompt(160, 160)[:96] + prompt(40, 1)]


@pytest.fixture(scope="module")
def bootstrap_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def alone(serve_with):
    """Greedy outputs of one server without any of this."""
    server = serve_with(FLAGS, name="registry-plain")
    return [server.generate(p, TOKENS, ignore_eos=True)["output_ids"] for p in PROMPTS]


@pytest.fixture
def pair(serve_with, bootstrap_port, alone):
    flags = {**FLAGS, "enable_cross_instance_cache_sync": True}
    prefill, decode = disaggregated_pair(ServerSpec(flags=flags, name="registry"), bootstrap_port)
    decode = decode.with_flags(
        disaggregation_decode_enable_radix_cache=True,
        cross_instance_cache_config='{"order": "predicted-ready", "transfer_tokens_per_s": 1e6}',
    )
    servers = [serve_with(s.flags, env=s.env, name=s.name) for s in (prefill, decode)]
    for server in servers:
        server.flush_cache()
    return servers


def estimate(decode, **body) -> dict:
    instances = decode.post("/prefix_registry/estimate", body)["instances"]
    assert len(instances) <= 1, "there is one prefill instance"
    return instances[0] if instances else {"prefix_tokens": 0, "ranks": [{"state": "unknown"}]}


def told(decode) -> dict:
    """What the registry says of the prefill instance's only rank."""
    (instance,) = decode.get("/prefix_registry")["instances"]
    return instance["ranks"][0]


def wait_for(condition, seconds: float = 5.0) -> float:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "not in time"
        time.sleep(0.05)
    return time.monotonic() - start


def cacheable(tokens: list[int]) -> int:
    return len(tokens) // PAGE * PAGE


def test_output_is_that_of_one_server(pair, alone):
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        answers = threads.map(
            lambda p: generate_on_pair(*pair, p, TOKENS, ignore_eos=True), PROMPTS
        )
        assert [answer["decode"]["output_ids"] for answer in answers] == alone


def test_estimate_is_what_prefill_then_finds_cached(pair):
    prefill, decode = pair
    for tokens in PROMPTS:
        generate_on_pair(prefill, decode, tokens, TOKENS, ignore_eos=True)
    for tokens in PROMPTS:
        wait_for(lambda t=tokens: estimate(decode, input_ids=t)["prefix_tokens"] == cacheable(t))
        answer = generate_on_pair(prefill, decode, tokens, TOKENS, ignore_eos=True)
        # The engine computes the last token always, and so the last page where it ends one.
        usable = (len(tokens) - 1) // PAGE * PAGE
        for side in ("prefill", "decode"):
            assert answer[side]["meta_info"]["cached_tokens"] == usable <= len(tokens)
    longer = PROMPTS[4] + prompt(64, 7)
    assert estimate(decode, input_ids=longer)["prefix_tokens"] == 160
    assert estimate(decode, input_ids=longer, extra_key="x")["prefix_tokens"] == 0
    assert estimate(decode, input_ids=longer, cache_salt="x")["prefix_tokens"] == 0


def test_text_is_tokenized_as_by_generate(pair):
    prefill, decode = pair
    text = "A sentence that is long enough to fill more than two pages of tokens, surely."
    answer = generate_on_pair(prefill, decode, text, TOKENS, ignore_eos=True)
    count = answer["prefill"]["meta_info"]["prompt_tokens"]
    found = {}

    def known() -> bool:
        found.update(decode.post("/prefix_registry/estimate", {"text": text}))
        wanted = count // PAGE * PAGE
        return [each["prefix_tokens"] for each in found["instances"]] == [wanted]

    wait_for(known)
    assert found["prompt_tokens"] == count


def test_flush_and_weight_update_are_followed(pair, tiny_model):
    prefill, decode = pair
    tokens = PROMPTS[4]

    def cached() -> int:
        return estimate(decode, input_ids=tokens)["prefix_tokens"]

    generate_on_pair(prefill, decode, tokens, TOKENS, ignore_eos=True)
    wait_for(lambda: cached() == 160)
    prefill.flush_cache()
    wait_for(lambda: cached() == 0)
    generate_on_pair(prefill, decode, tokens, TOKENS, ignore_eos=True)
    wait_for(lambda: cached() == 160)
    before = told(decode)["restarts"]
    prefill.post("/update_weights_from_disk", {"model_path": str(tiny_model)}, timeout=120)

    def restarted() -> bool:
        rank = told(decode)
        return rank["restarts"] > before and rank["state"] == "live"

    wait_for(restarted)
    assert cached() == 0


def test_metrics_of_both_sides_agree(pair):
    prefill, decode = pair
    generate_on_pair(prefill, decode, PROMPTS[4], TOKENS, ignore_eos=True)
    wait_for(lambda: estimate(decode, input_ids=PROMPTS[4])["prefix_tokens"] == 160)

    def agree() -> bool:
        published = prefill.metrics().total("sglang:prefix_registry_publisher_resident_blocks")
        read = decode.metrics().total("sglang:prefix_registry_reader_blocks")
        return published == read > 0

    wait_for(agree, 10)
    assert prefill.metrics().total("sglang:prefix_registry_publisher_up") == 1
    assert decode.metrics().total("sglang:prefix_registry_reader_live") == 1
    assert decode.metrics().total("sglang:prefix_registry_estimates_total") > 0


def test_prefill_has_no_registry_and_says_so(pair):
    with pytest.raises(ServerError, match="400.*decode instances keep"):
        pair[0].get("/prefix_registry")


def test_killed_and_restarted_prefill(pair, serve_with):
    prefill, decode = pair
    tokens = PROMPTS[4]
    generate_on_pair(prefill, decode, tokens, TOKENS, ignore_eos=True)
    wait_for(lambda: estimate(decode, input_ids=tokens)["prefix_tokens"] == 160)
    for process in prefill.processes():
        os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: estimate(decode, input_ids=tokens)["prefix_tokens"] == 0)
    wait_for(lambda: not prefill.alive, 20)
    spec = prefill.spec
    again = serve_with(spec.flags, env=spec.env, name=spec.name)
    wait_for(lambda: estimate(decode, input_ids=tokens)["ranks"][0]["state"] == "live")
    assert estimate(decode, input_ids=tokens)["prefix_tokens"] == 0
    answer = generate_on_pair(again, decode, tokens, TOKENS, ignore_eos=True)
    assert len(answer["decode"]["output_ids"]) == TOKENS
    wait_for(lambda: estimate(decode, input_ids=tokens)["prefix_tokens"] == 160)
