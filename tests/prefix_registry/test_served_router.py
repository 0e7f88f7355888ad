# SPDX-License-Identifier: Apache-2.0
"""Two prefill instances, a decode instance and the router's mini load balancer."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from served_registry import (
    NEEDS_A_PAIR,
    PROMPTS,
    TOKENS,
    address,
    estimates,
    pages,
    serve,
    told,
    wait_for,
)

from harness import Server, ServerSpec, free_port

pytestmark = [
    *NEEDS_A_PAIR,
    pytest.mark.skipif(
        importlib.util.find_spec("sglang_router") is None,
        reason="the router is not installed (pip install sglang-router==0.3.2)",
    ),
]
# It chooses a prefill instance at random, so a prompt is sent again until both were chosen.
MOST_TRIES = 40


@pytest.fixture(scope="module")
def second_bootstrap_port() -> int:
    return free_port()


@pytest.fixture
def two_prefills(pair, serve_with, second_bootstrap_port):
    """The pair's prefill server and a second one, and the decode server."""
    prefill, decode = pair
    spec = prefill.spec.with_flags(disaggregation_bootstrap_port=second_bootstrap_port)
    second = serve_with(spec.flags, env=spec.env, name=f"{spec.name}-2")
    second.flush_cache()
    return [prefill, second], decode


@pytest.fixture
def router(two_prefills, server_pool):
    prefills, decode = two_prefills
    command = [sys.executable, "-m", "sglang_router.launch_router"]
    command += ["--pd-disaggregation", "--mini-lb", "--host", "{host}", "--port", "{port}"]
    for prefill in prefills:
        port = prefill.spec.flags["disaggregation_bootstrap_port"]
        command += ["--prefill", prefill.url, str(port)]
    command += ["--decode", decode.url]
    with Server(ServerSpec(name="router", command=command), server_pool.log_dir) as server:
        yield server


def test_each_prefill_is_listed_with_its_own_prefixes(two_prefills, router, alone):
    prefills, decode = two_prefills
    names = [address(prefill) for prefill in prefills]
    prompts = dict(enumerate(PROMPTS[3:5]))
    outputs = dict(enumerate(alone[3:5]))
    found = {}

    def chosen(prompt: int) -> set[str]:
        found[prompt] = estimates(decode, prompts[prompt])
        return {name for name, tokens in found[prompt].items() if tokens}

    # The first prompt goes to both; the second then once, to the one or the other.
    for _ in range(MOST_TRIES):
        answer = router.generate(prompts[0], TOKENS, ignore_eos=True)
        assert answer["output_ids"] == outputs[0]
        wait_for(lambda: bool(chosen(0)))
        if len(chosen(0)) == 2:
            break
    else:
        pytest.fail(f"{MOST_TRIES} requests went to one prefill instance")
    answer = router.generate(prompts[1], TOKENS, ignore_eos=True)
    assert answer["output_ids"] == outputs[1]
    wait_for(lambda: bool(chosen(1)))
    assert sorted(found[0]) == sorted(found[1]) == sorted(names)
    assert set(found[0].values()) == {pages(len(prompts[0]))}
    assert sorted(found[1].values()) == [0, pages(len(prompts[1]))]
    for prefill, name in zip(prefills, names, strict=True):
        assert told(decode, prefill)["state"] == "live"
        # What each then finds cached is what was said of it.
        cached = serve(prefill, decode, prompts[1])["prefill"]["meta_info"]["cached_tokens"]
        assert cached == min(found[1][name], pages(len(prompts[1]) - 1))


def test_a_flush_of_one_leaves_the_other(two_prefills, alone):
    prefills, decode = two_prefills
    for prefill in prefills:
        answer = serve(prefill, decode, PROMPTS[4])
        assert answer["decode"]["output_ids"] == alone[4]
    whole = pages(len(PROMPTS[4]))
    names = [address(prefill) for prefill in prefills]
    wait_for(lambda: estimates(decode, PROMPTS[4]) == dict.fromkeys(names, whole))
    prefills[0].flush_cache()
    wait_for(lambda: estimates(decode, PROMPTS[4]) == {names[0]: 0, names[1]: whole})
