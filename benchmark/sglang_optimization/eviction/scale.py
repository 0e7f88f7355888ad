# SPDX-License-Identifier: Apache-2.0
"""Cost of one eviction against the number of leaves.

A full pool of ``n`` leaves of 4 tokens each; ``evict(16 tokens)`` is timed, then four
new leaves fill the gap, so that every call meets the same ``n``.
"""

from __future__ import annotations

import itertools
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from common import stats

from .driver import Replay
from .policies import Policy
from .trace import Request

LEAF_TOKENS = 4
EVICT_TOKENS = 16
# Timed calls: at least and at most this many, ending after about a second.
LEAST_CALLS = 5
MOST_CALLS = 300
BUDGET_S = 1.0
ARRIVALS_A_SECOND = 10.0


def evict_cost(policy: Policy, leaves: int) -> dict[str, Any]:
    """Time ``evict(16)`` with ``leaves`` leaves; one row for the result file.

    Raises:
        AssertionError: an eviction freed another number of tokens than asked.
    """
    tree = Replay(policy, leaves * LEAF_TOKENS, block_tokens=1, page_size=1)
    requests = _requests()
    for request in itertools.islice(requests, leaves):
        tree.serve(request)
    filled_us = tree.outcome.mean_request_us

    samples: list[float] = []
    spent = 0.0
    while len(samples) <= LEAST_CALLS or (spent < BUDGET_S and len(samples) < MOST_CALLS):
        began = stats.cpu_clock_ns()
        freed = tree.cache.evict(EvictParams(num_tokens=EVICT_TOKENS)).num_tokens_evicted
        elapsed = (stats.cpu_clock_ns() - began) / 1e9
        assert freed == EVICT_TOKENS, f"{policy.name} freed {freed} of {EVICT_TOKENS}"
        samples.append(elapsed * 1e6)
        spent += elapsed
        for request in itertools.islice(requests, EVICT_TOKENS // LEAF_TOKENS):
            tree.serve(request)
    # The first call pays for lazy imports and cold caches.
    samples = samples[1:]
    tree.check()
    return {
        "policy": policy.name,
        "core": policy.core,
        "leaves": leaves,
        "evict_us": stats.median(samples),
        "evict_us_p90": stats.percentile(samples, 90),
        "calls": len(samples),
        "insert_us": filled_us,
        "state_bytes": tree.hooks.state_bytes(tree.cache),
    }


def _requests() -> Any:
    """Requests of one leaf each that share nothing, ten a second."""
    for index in itertools.count():
        first = index * LEAF_TOKENS
        yield Request(
            arrival_s=index / ARRIVALS_A_SECOND,
            blocks=tuple(range(first, first + LEAF_TOKENS)),
            output_tokens=100,
        )
