# SPDX-License-Identifier: Apache-2.0
"""A prefill and a decode server with the registry, on loopback."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import ServerSpec, free_port
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


def test_output_is_that_of_one_server(pair, alone):
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        answers = threads.map(
            lambda p: generate_on_pair(*pair, p, TOKENS, ignore_eos=True), PROMPTS
        )
        assert [answer["decode"]["output_ids"] for answer in answers] == alone
