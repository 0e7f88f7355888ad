# SPDX-License-Identifier: Apache-2.0
"""A prefill and a decode server answer together what one server answers alone."""

from __future__ import annotations

import importlib.util
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import ServerSpec, free_port
from harness.disaggregation import disaggregated_pair, generate_on_pair, missing_transfer_engine

from .conftest import PLAIN, make_prompts

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        missing_transfer_engine() is not None, reason=missing_transfer_engine() or ""
    ),
]

TOKENS = 12
# The pair decides at every step whether to overlap, where the topic is in this build. Probes are
# frequent: both ways of processing a result, and the changes between them, are met.
DECIDES = importlib.util.find_spec("sglang.srt.managers.dynamic_overlap") is not None
DYNAMIC = {
    "enable_dynamic_overlap": True,
    "dynamic_overlap_config": {
        "min_samples": 1,
        "min_dwell_steps": 0,
        "probe_interval_steps": 6,
        "probe_steps": 2,
    },
}
# One token, one page less and more than a chunk, several chunks; the last two share a prefix.
PROMPTS = [
    *(make_prompts(1, n, seed=n)[0] for n in (1, 2, 63, 64, 65, 150)),
    make_prompts(1, 150, seed=150)[0][:100] + make_prompts(1, 30, seed=9)[0],
]


@pytest.fixture(scope="module")
def bootstrap_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def alone(plain_output) -> list[list[int]]:
    """What one server answers to each of ``PROMPTS``."""
    return [plain_output(prompt, TOKENS) for prompt in PROMPTS]


@pytest.fixture
def pair(serve_with, bootstrap_port, alone):
    """Both servers with empty caches; the decode side keeps prefixes too."""
    flags = {**PLAIN, **(DYNAMIC if DECIDES else {})}
    specs = disaggregated_pair(ServerSpec(flags=flags, name="pd"), bootstrap_port)
    prefill, decode = specs
    decode = decode.with_flags(disaggregation_decode_enable_radix_cache=True)
    servers = [serve_with(s.flags, env=s.env, name=s.name) for s in (prefill, decode)]
    for server in servers:
        server.flush_cache()
    return servers


def test_output_is_that_of_one_server(alone, pair):
    for prompt, output in zip(PROMPTS, alone, strict=True):
        answer = generate_on_pair(*pair, prompt, TOKENS, ignore_eos=True)
        assert answer["decode"]["output_ids"] == output
        assert answer["prefill"]["output_ids"] == output[:1]


def test_cached_prefixes_are_handed_over_and_kept(alone, pair):
    """The whole prefix first, then only what the decode side lacks, then the whole again."""
    prompt = PROMPTS[5]
    output = alone[5]
    prefill, decode = pair
    for cached, flushed in ((0, None), (149, None), (149, decode)):
        if flushed is not None:
            flushed.flush_cache()  # the prefill side must send what it did not compute
        answer = generate_on_pair(prefill, decode, prompt, TOKENS, ignore_eos=True)
        assert answer["decode"]["output_ids"] == output
        assert answer["prefill"]["meta_info"]["cached_tokens"] == cached


def test_many_at_once(alone, pair):
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        answers = threads.map(
            lambda prompt: generate_on_pair(*pair, prompt, TOKENS, ignore_eos=True), PROMPTS
        )
        assert [answer["decode"]["output_ids"] for answer in answers] == alone


def test_abort_leaves_the_others_alone(alone, pair):
    output = alone[4]
    prefill, decode = pair
    answer = {}
    thread = threading.Thread(
        target=lambda: answer.update(
            generate_on_pair(prefill, decode, PROMPTS[3], 3000, rid="gone", ignore_eos=True)
        )
    )
    thread.start()
    deadline = time.monotonic() + 120
    while thread.is_alive() and time.monotonic() < deadline:
        other = generate_on_pair(prefill, decode, PROMPTS[4], TOKENS, ignore_eos=True)
        assert other["decode"]["output_ids"] == output
        decode.request("POST", "/abort_request", json={"rid": "gone"})
        thread.join(0.5)
    assert answer["decode"]["meta_info"]["finish_reason"]["type"] == "abort"
    again = generate_on_pair(prefill, decode, PROMPTS[4], TOKENS, ignore_eos=True)
    assert again["decode"]["output_ids"] == output


@pytest.mark.skipif(not DECIDES, reason="topic dynamic-overlap is not in this build")
def test_both_loops_decide(pair):
    """The outputs above came about under decisions of both kinds, on both sides."""
    name = "sglang:dynamic_overlap_decisions_total"
    for server in pair:
        before = server.metrics()
        for prompt in PROMPTS:
            generate_on_pair(*pair, prompt, TOKENS, ignore_eos=True)
        decided = server.metrics() - before
        outcomes = decided.by(name, "outcome")
        assert outcomes["drain"] > 0 and outcomes["overlap"] > 0, outcomes
    # On the decode side a step is a token; its metrics are exported when it idles.
    assert sum(outcomes.values()) >= len(PROMPTS) * (TOKENS - 2)
    reasons = pair[0].metrics().by(name, "reason")
    assert reasons["kv_send"] > 0, "a chunk whose KV is not in the tree yet must overlap"
    assert pair[1].metrics().by(name, "reason")["probe"] > 0
