# SPDX-License-Identifier: Apache-2.0
"""Requests and where they come from."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass
from typing import Callable, Iterator, Sequence

from eviction.trace import Trace

COLD, HOT = "cold", "hot"


@dataclass(frozen=True, slots=True)
class Job:
    """One request to come.

    Attributes:
        arrival_s: arrival in seconds; ignored where the queue is kept at a length.
        parts: token ranges of the prompt, as (first id, count). Equal ranges at
            the start are shared prefixes; written out only when the job arrives.
        output_tokens: tokens it will generate.
        kind: label by which waits are reported.
    """

    arrival_s: float
    parts: tuple[tuple[int, int], ...]
    output_tokens: int
    kind: str = HOT

    @property
    def prompt_tokens(self) -> int:
        return sum(count for _, count in self.parts)

    def tokens(self) -> array:
        """The prompt's token ids."""
        ids = array("q")
        for first, count in self.parts:
            ids.extend(range(first, first + count))
        return ids


class _Ids:
    """Hands out token ranges that no other prompt uses."""

    def __init__(self) -> None:
        self._next = 1

    def fresh(self, count: int) -> tuple[int, int]:
        first = self._next
        self._next += count
        return first, count


Shape = Callable[[random.Random], Iterator[Job]]


def shared_prefix(rng: random.Random) -> Iterator[Job]:
    """256 system prompts of 512 to 2,048 tokens, Zipf popularity, short questions."""
    ids = _Ids()
    prompts = [ids.fresh(rng.randrange(512, 2049, 64)) for _ in range(256)]
    weights = [1 / rank**0.8 for rank in range(1, len(prompts) + 1)]
    while True:
        prompt = rng.choices(prompts, weights)[0]
        yield Job(0.0, (prompt, ids.fresh(rng.randint(32, 256))), rng.randint(16, 128))


def no_sharing(rng: random.Random) -> Iterator[Job]:
    """Prompts of 64 to 2,048 tokens that have nothing in common."""
    ids = _Ids()
    while True:
        yield Job(0.0, (ids.fresh(rng.randint(64, 2048)),), rng.randint(16, 128), COLD)


def mixed(rng: random.Random) -> Iterator[Job]:
    """Four in five from ``shared_prefix``, one in five from ``no_sharing``."""
    hot = shared_prefix(random.Random(rng.random()))
    ids = _Ids()
    while True:
        if rng.random() < 0.8:
            yield next(hot)
        else:
            # Ids above everything the hot stream can reach.
            first, count = ids.fresh(rng.randint(64, 2048))
            yield Job(0.0, ((first + (1 << 40), count),), rng.randint(16, 128), COLD)


def hot_stream(rng: random.Random) -> Iterator[Job]:
    """Nine in ten under four cached prompts, one in ten cold: lpm's bad case."""
    ids = _Ids()
    prompts = [ids.fresh(2048) for _ in range(4)]
    while True:
        if rng.random() < 0.9:
            parts = (rng.choice(prompts), ids.fresh(rng.randint(64, 192)))
            yield Job(0.0, parts, rng.randint(16, 64))
        else:
            yield Job(0.0, (ids.fresh(rng.randint(256, 1024)),), rng.randint(16, 64), COLD)


SHAPES: dict[str, Shape] = {
    "shared": shared_prefix,
    "none": no_sharing,
    "mixed": mixed,
    "hot": hot_stream,
}


def shape(name: str, seed: int) -> Iterator[Job]:
    """An endless, reproducible stream of the named workload."""
    # A string seeds Random through SHA-512: the same on every machine and run.
    return SHAPES[name](random.Random(f"{name}/{seed}"))


def from_trace(trace: Trace, speed: float) -> Sequence[Job]:
    """A trace's requests with their arrival times, ``speed`` times as fast."""
    size = trace.block_tokens
    return [
        Job(
            request.arrival_s / speed,
            tuple((block * size, size) for block in request.blocks),
            max(1, request.output_tokens),
            HOT,
        )
        for request in trace.requests
    ]
