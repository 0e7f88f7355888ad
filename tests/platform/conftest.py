# SPDX-License-Identifier: Apache-2.0
"""Prompts and servers of the platform's end-to-end tests."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

import pytest

from harness import Server

# The default configuration, with small chunks so that ordinary prompts are chunked.
PLAIN = {"chunked_prefill_size": 64}


def make_prompts(count: int, length: int, seed: int = 0) -> list[list[int]]:
    """Seeded prompts of printable bytes, as token ids; no two share a prefix of 8."""
    rng = random.Random(seed)
    return [[rng.randrange(33, 127) for _ in range(length)] for _ in range(count)]


@pytest.fixture
def plain(serve_with) -> Server:
    """The server of the default configuration (overlap loop, Rust tree core, page size 1)."""
    return serve_with(PLAIN, name="plain")


@pytest.fixture(scope="session")
def plain_output(serve_with) -> Callable[..., list[int]]:
    """``plain_output(prompt, max_new_tokens)``: greedy token ids of the default configuration.

    Computed with an empty cache and no other request, and remembered. Every other
    configuration must give the same. Ask for everything a test needs before starting its
    server: few servers are kept alive.
    """
    known: dict[str, list[int]] = {}

    def ask(prompt: Sequence[int], max_new_tokens: int, **sampling) -> list[int]:
        sampling = {"ignore_eos": True, **sampling}
        key = json.dumps([list(prompt), max_new_tokens, sampling])
        if key not in known:
            server = serve_with(PLAIN, name="plain")
            server.flush_cache()
            known[key] = server.generate(prompt, max_new_tokens, **sampling)["output_ids"]
        return known[key]

    return ask
