# SPDX-License-Identifier: Apache-2.0
"""What the tests of served prefill and decode instances share."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from harness import Server
from harness.disaggregation import generate_on_pair, missing_transfer_engine

NEEDS_A_PAIR = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        missing_transfer_engine() is not None, reason=missing_transfer_engine() or ""
    ),
]
PAGE = 16
FLAGS = {"page_size": PAGE, "chunked_prefill_size": 64, "served_model_name": "tiny"}
TOKENS = 8


def prompt(length: int, seed: int) -> list[int]:
    """Random printable token ids of the tiny model."""
    chance = random.Random(seed)
    return [chance.randrange(33, 127) for _ in range(length)]


# Less than a page, a page, more than a page, several chunks; the last shares 96 tokens.
PROMPTS = [prompt(n, n) for n in (15, 16, 17, 100, 160)] + [prompt(160, 160)[:96] + prompt(40, 1)]
LONG = PROMPTS[4]


def pages(tokens: int) -> int:
    """Tokens of whole pages among the first ``tokens``."""
    return tokens // PAGE * PAGE


def serve(prefill: Server, decode: Server, tokens: list[int] | str) -> dict[str, dict[str, Any]]:
    """One request through both instances."""
    return generate_on_pair(prefill, decode, tokens, TOKENS, ignore_eos=True)


def estimates(decode: Server, tokens: list[int], **namespace: str) -> dict[str, int]:
    """Cached tokens of a prompt by prefill instance, as the endpoint tells."""
    answer = decode.post("/prefix_registry/estimate", {"input_ids": tokens, **namespace})
    assert answer["prompt_tokens"] == len(tokens)
    return {each["instance"]: each["prefix_tokens"] for each in answer["instances"]}


def address(prefill: Server) -> str:
    """The name that a decode instance has for it."""
    return f"{prefill.spec.host}:{prefill.spec.flags['disaggregation_bootstrap_port']}"


def told(decode: Server, prefill: Server) -> dict[str, Any]:
    """What the registry says of a prefill instance's only rank."""
    instances = decode.get("/prefix_registry")["instances"]
    (instance,) = [each for each in instances if each["instance"] == address(prefill)]
    return instance["ranks"][0]


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> float:
    """Seconds until ``condition`` held; fails when that is too long."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"not within {seconds} s"
        time.sleep(0.05)
    return time.monotonic() - start
