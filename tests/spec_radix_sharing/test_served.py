# SPDX-License-Identifier: Apache-2.0
"""A real server with early sharing answers as one without it, and serves running output."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request

import aiohttp
import pytest

from spec_radix_sharing.agents import Branching, branch_off
from support.draft_heads import make_eagle3_head, make_eagle_head

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SHARING = {"enable_spec_radix_sharing": True, "spec_radix_sharing_interval": 8}
PROMPTS = [
    [*b"The quick brown fox jumps over the lazy dog. " * 2],
    [*b"abcabcabcabcabcabc" * 5],
]


def bigram_tail(server):
    """Tokens at the end of what is known that a tree of bigrams does not hold."""
    return int(server.server_info()["speculative_algorithm"].startswith("EAGLE"))


def metric(change, name):
    return change.get(f"sglang:spec_radix_sharing_{name}_total")


def eagle_flags(algorithm, tiny_model, folder):
    make = {"EAGLE": make_eagle_head, "EAGLE3": make_eagle3_head}[algorithm]
    return {
        "speculative_algorithm": algorithm,
        "speculative_draft_model_path": str(make(tiny_model, folder)),
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 2,
        "speculative_num_draft_tokens": 6,
    }


@pytest.fixture(scope="module")
def plain(serve_with):
    """What the server answers without the flag and without speculation."""
    server = serve_with()
    server.flush_cache()
    work = Branching(PROMPTS, output=320, every=40, branches=2, answer=8)
    outcome = branch_off(server.url, work, seed=3)
    return work, outcome


@pytest.fixture(scope="module", params=["NGRAM", "EAGLE", "EAGLE3"])
def sharing(request, serve_with, plain, tiny_model, tmp_path_factory):
    if request.param == "NGRAM":
        flags = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 6}
    else:
        flags = eagle_flags(request.param, tiny_model, tmp_path_factory.mktemp("head"))
    return serve_with({**SHARING, **flags}, name=f"sharing-{request.param.lower()}")


def test_branches_find_running_output_and_answer_the_same(sharing, plain):
    work, without = plain
    sharing.flush_cache()
    with sharing.measured() as change:
        outcome = branch_off(sharing.url, work, seed=3)
    assert outcome.answers() == without.answers()
    recomputed = [branch.recomputed for branch in outcome.branches]
    # All but what bigram keys cannot name, whatever the interval. One that arrives while a pass is
    # in flight, and whose root's row would change, waits for the next natural point.
    assert min(recomputed) <= bigram_tail(sharing), recomputed
    # A branch that the client sends late, when its root has ended, misses nothing there.
    missed = sum(branch.recomputed for branch in without.branches)
    assert missed > len(recomputed)
    assert sum(recomputed) <= 0.3 * missed + len(recomputed) * bigram_tail(sharing), recomputed
    served = metric(change[0], "served_tokens")
    assert served > 0
    # Each token that counts as served was a cached token of some branch.
    assert served <= sum(branch.result.cached_tokens for branch in outcome.branches)
    assert metric(change[0], "shared_tokens") > 0
    assert metric(change[0], "arrival_insertions") > 0


def test_namespaces_do_not_see_each_other(sharing):
    sharing.flush_cache()
    prompt = PROMPTS[0]

    async def while_running():
        timeout = aiohttp.ClientTimeout(total=300)
        body = {
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": 120, "ignore_eos": True},
            "stream": True,
            "extra_key": "tenant",
        }
        seen = {}
        async with aiohttp.ClientSession(timeout=timeout) as client:

            async def ask(ids, **more):
                asked = {
                    "input_ids": ids,
                    "sampling_params": {"temperature": 0, "max_new_tokens": 2},
                    **more,
                }
                async with client.post(f"{sharing.url}/generate", json=asked) as answer:
                    return (await answer.json())["meta_info"]["cached_tokens"]

            async with client.post(f"{sharing.url}/generate", json=body) as response:
                async for raw in response.content:
                    line = raw.decode().strip().removeprefix("data:").strip()
                    if not line or line == "[DONE]":
                        continue
                    output = json.loads(line)["output_ids"]
                    if len(output) >= 80 and not seen:
                        seen["other"] = await ask(prompt + output[:80], extra_key="other")
                        seen["none"] = await ask(prompt + output[:80])
                        seen["own"] = await ask(prompt + output[:80], extra_key="tenant")
        return seen

    seen = asyncio.run(while_running())
    assert seen["other"] == 0 and seen["none"] == 0
    # Whatever the interval: it is shared because this one arrives.
    assert seen["own"] == len(prompt) + 79 - bigram_tail(sharing)


def test_abort_gives_everything_back(sharing):
    sharing.flush_cache()
    body = {
        "rid": "to-be-aborted",
        "input_ids": PROMPTS[1],
        "sampling_params": {"temperature": 0, "max_new_tokens": 2000, "ignore_eos": True},
        "stream": True,
    }
    request = urllib.request.Request(
        f"{sharing.url}/generate",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as stream:
        for _ in range(60):
            stream.readline()
        sharing.request("POST", "/abort_request", json={"rid": "to-be-aborted"})
        stream.read()
    time.sleep(1)
    # Succeeds only where no request holds a page; the next answer would show a lost one.
    sharing.flush_cache()
    again = sharing.generate(PROMPTS[1], 16, ignore_eos=True)
    assert again["meta_info"]["cached_tokens"] == 0
