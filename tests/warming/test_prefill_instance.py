# SPDX-License-Identifier: Apache-2.0
"""Warming on the prefill side of a pair: its KV serves requests that decode elsewhere."""

from __future__ import annotations

import json
import time

import pytest
from served import LONG, states, wait_warm

from harness import ServerSpec, free_port
from harness.disaggregation import disaggregated_pair, generate_on_pair, missing_transfer_engine

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(
        missing_transfer_engine() is not None, reason=missing_transfer_engine() or ""
    ),
]


@pytest.fixture(scope="module")
def pair(serve_with, tmp_path_factory):
    path = tmp_path_factory.mktemp("warming") / "none.json"
    path.write_text(json.dumps({"prompts": []}))
    prefill, decode = disaggregated_pair(ServerSpec(name="warm-pd"), free_port())
    prefill = prefill.with_flags(cache_warming_prompts=str(path), cache_warming_chunk_size=64)
    return [serve_with(s.flags, env=s.env, name=s.name) for s in (prefill, decode)]


def test_what_was_warmed_is_handed_over(pair):
    prefill, decode = pair
    question = LONG + "\nWhat is on page three?"

    def ask():
        answer = generate_on_pair(prefill, decode, question, 12, ignore_eos=True)
        return answer["decode"]["output_ids"], answer["prefill"]["meta_info"]["cached_tokens"]

    cold, cached = ask()
    assert cached == 0
    prefill.flush_cache()
    prefill.post("/cache_warming", {"prompts": [{"name": "manual", "text": LONG}]})
    tokens = wait_warm(prefill)["manual"]["tokens"]
    warm, cached = ask()
    assert cached >= 0.95 * tokens
    assert warm == cold
    # Steps send their KV nowhere and leave nothing behind.
    prefill.flush_cache()
    assert wait_warm(prefill)["manual"]["times_warmed"] == 2
    assert ask() == (cold, cached)
    prompts, _ = states(prefill)
    assert prompts["manual"]["state"] == "warm"


def test_control_requests_may_come_during_a_step(pair):
    """They wait for the chunk that runs, and the loop makes no batch meanwhile."""
    prefill, _ = pair
    prefill.post("/cache_warming", {"prompts": [{"name": "more", "text": f"More. {LONG}"}]})
    wait_warm(prefill)
    for _ in range(3):
        prefill.flush_cache()  # both are warmed again
        deadline = time.monotonic() + 60
        while {each["state"] for each in states(prefill)[0].values()} != {"warm"}:
            assert prefill.server_info()["internal_states"]
            assert time.monotonic() < deadline, states(prefill)
