# SPDX-License-Identifier: Apache-2.0
"""Whether decode's order by prediction pays: the same arrivals with and without it.

Upstream's prefill computes a request once decode has room for it. Decode has room for four
here, and requests whose prefix is cached arrive among cold ones, faster than prefill computes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from common.cli import BenchError
from common.stats import mean, percentile, ratio_interval
from harness import Result

from .pair import PROMPT_TOKENS, Pair, random_tokens

NEW_TOKENS = 4
OWN_TOKENS = 64
ORDERS = ("arrival", "predicted-ready")
# Histogram of decode's stages; this one is from room in decode's memory to the KV there.
STAGES = "sglang:per_stage_req_latency_seconds_sum"
WAITING_FOR_KV = "decode_transferred"


@dataclass(frozen=True)
class Arrival:
    """A request of the workload."""

    at_s: float
    prompt: Sequence[int]
    cached: bool


def arrivals(
    chance: random.Random, prefixes: list[list[int]], count: int, span_s: float
) -> list[Arrival]:
    """``count`` requests over ``span_s`` seconds, half of them with a cached prefix."""
    kinds = [number % 2 == 0 for number in range(count)]
    chance.shuffle(kinds)
    found = []
    for cached in kinds:
        prefix = chance.choice(prefixes) if cached else []
        own = random_tokens(chance, PROMPT_TOKENS - len(prefix))
        found.append(Arrival(chance.uniform(0, span_s), [*prefix, *own], cached))
    return sorted(found, key=lambda arrival: arrival.at_s)


def measure(
    pairs: dict[str, Pair], *, rounds: int, requests: int, span_s: float, seed: int
) -> list[dict[str, Any]]:
    """Time to the first token and decode memory held, by order.

    Args:
        pairs: by order; they share the prefill instance.
        rounds: times that each is given a workload; the same one in a round.
        requests: of a round, which arrive within ``span_s`` seconds.
    """
    chance = random.Random(seed)
    prefixes = [random_tokens(chance, PROMPT_TOKENS - OWN_TOKENS) for _ in range(2)]
    ttft: dict[str, dict[str, list[float]]] = {
        name: {"all": [], "cached": [], "cold": []} for name in pairs
    }
    by_round: dict[str, dict[str, list[float]]] = {name: {"ttft": [], "held": []} for name in pairs}
    for number in range(rounds):
        load = arrivals(chance, prefixes, requests, span_s)
        names = list(pairs) if number % 2 == 0 else list(pairs)[::-1]
        for name in names:
            pair = pairs[name]
            _warm(pair, prefixes)
            with pair.decode.measured() as difference:
                answers = asyncio.run(_replay(pair, load))
            times = [answer.ttft_s or 0.0 for answer in answers]
            for arrival, seconds in zip(load, times, strict=True):
                ttft[name]["all"].append(seconds)
                ttft[name]["cached" if arrival.cached else "cold"].append(seconds)
            by_round[name]["ttft"].append(mean(times))
            waited = difference[0].total(STAGES, stage=WAITING_FOR_KV)
            # A request holds its prompt's slots from the start.
            by_round[name]["held"].append(waited * PROMPT_TOKENS)
    rows = []
    for name in pairs:
        row: dict[str, Any] = {"order": name, "rounds": rounds, "requests": requests * rounds}
        for kind, values in ttft[name].items():
            row[f"ttft_{kind}_mean_s"] = mean(values)
        row["ttft_all_p90_s"] = percentile(ttft[name]["all"], 90)
        row["ttft_cold_max_s"] = max(ttft[name]["cold"])
        row["held_token_s"] = mean(by_round[name]["held"])
        if name != ORDERS[0] and ORDERS[0] in pairs:
            for key in ("ttft", "held"):
                middle, low, high = ratio_interval(by_round[name][key], by_round[ORDERS[0]][key])
                row.update({f"{key}_ratio": middle, f"{key}_low": low, f"{key}_high": high})
        rows.append(row)
    return rows


def _warm(pair: Pair, prefixes: list[list[int]]) -> None:
    """Prefill has the prefixes and nothing else, and decode's registry knows."""
    pair.prefill.flush_cache()
    pair.ask_all(prefixes, 1)
    deadline = time.monotonic() + 10
    while any(pair.estimate(prefix) != len(prefix) for prefix in prefixes):
        if time.monotonic() > deadline:
            raise BenchError("decode's registry did not learn of the shared prefixes")
        time.sleep(0.05)


async def _replay(pair: Pair, load: list[Arrival]) -> list[Result]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client:
        begin = time.perf_counter()

        async def one(arrival: Arrival) -> Result:
            await asyncio.sleep(max(0.0, begin + arrival.at_s - time.perf_counter()))
            return await pair.ask(client, arrival.prompt, NEW_TOKENS)

        return list(await asyncio.gather(*map(one, load)))
