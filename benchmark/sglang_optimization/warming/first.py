# SPDX-License-Identifier: Apache-2.0
"""The first requests of listed prompts: without warming, with hints, with KV."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from common import stats
from harness import Result, Server, summarize

from . import measure, prompts

NEW_TOKENS = 8
BURST_EACH = 2


@dataclass
class Answered:
    """What one server answered.

    Attributes:
        warm_s: seconds until everything listed was warm; None without warming.
        one_by_one: a request for each prompt, one at a time.
        at_once: ``BURST_EACH`` requests for each prompt, all at the same time.
    """

    warm_s: float | None
    one_by_one: list[Result]
    at_once: list[Result]

    def output_ids(self) -> list[list[int]]:
        """What was generated, in order."""
        return [result.output_ids for result in [*self.one_by_one, *self.at_once]]


def ask(server: Server, listed: Sequence[dict[str, Any]], seed: int, warming: bool) -> Answered:
    """Ask ``server`` for every listed prompt with one new line; its cache is flushed first."""
    rng = random.Random(seed)
    single = prompts.first_requests(rng, listed, 1, NEW_TOKENS)
    burst = prompts.first_requests(rng, listed, BURST_EACH, 4)
    measure.settle(server)
    warm_s = measure.wait_warm(server) if warming else None
    one_by_one = measure.one_by_one(server, single)
    server.flush_cache()
    if warming:
        measure.wait_warm(server)
    return Answered(warm_s, one_by_one, measure.at_once(server, burst))


def rows(answered: dict[str, Answered], listed_tokens: dict[str, int]) -> list[dict[str, Any]]:
    """A row a mode. Answers and TTFT are compared with those of the first mode.

    Args:
        answered: by mode, the one to compare with first.
        listed_tokens: tokens of each listed prompt, in order.
    """
    base = next(iter(answered.values()))
    cold_p50 = summarize(base.one_by_one).ttft_p50_s
    made = []
    for mode, got in answered.items():
        summary, burst = summarize(got.one_by_one), summarize(got.at_once)
        shares = [
            result.cached_tokens / tokens
            for result, tokens in zip(got.one_by_one, listed_tokens.values(), strict=True)
        ]
        made.append(
            {
                "mode": mode,
                "hit_ratio": summary.hit_ratio,
                "least_hit": min(shares),
                "prompt_tokens": stats.mean([r.prompt_tokens for r in got.one_by_one]),
                "ttft_p50_s": summary.ttft_p50_s,
                "ttft_max_s": max(r.ttft_s for r in got.one_by_one if r.ttft_s is not None),
                "ttft_of_cold": summary.ttft_p50_s / cold_p50,
                "burst_hit_ratio": burst.hit_ratio,
                "burst_ttft_mean_s": burst.ttft_mean_s,
                "warm_s": got.warm_s,
                "same_answers": got.output_ids() == base.output_ids(),
            }
        )
    return made
