# SPDX-License-Identifier: Apache-2.0
"""Built-in request workloads, fully determined by name, length and seed.

Each isolates one pattern that production traces mix. Blocks are 512 tokens, as
in Mooncake traces. Arrivals are in seconds, so that policies which use event time
see realistic gaps: a reader thinks for about a minute, a tool call takes seconds.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Callable, Iterator

from .trace import Request, Trace

BLOCK_TOKENS = 512


class _Blocks:
    """Hands out ids that no other prefix uses."""

    def __init__(self) -> None:
        self._next = itertools.count()

    def fresh(self, count: int) -> tuple[int, ...]:
        return tuple(itertools.islice(self._next, count))


@dataclass
class _Session:
    """A growing context: a chat or an agent."""

    due_s: float
    context: tuple[int, ...]
    turns_left: int


def shared_prefixes(rng: random.Random, count: int) -> Iterator[Request]:
    """Independent requests under 64 system prompts of Zipf popularity."""
    blocks = _Blocks()
    prompts = [blocks.fresh(rng.randint(4, 24)) for _ in range(64)]
    weights = [1 / rank for rank in range(1, len(prompts) + 1)]
    now = 0.0
    for _ in range(count):
        now += rng.expovariate(4.0)
        prompt = rng.choices(prompts, weights)[0]
        yield _finished(rng, blocks, now, prompt + blocks.fresh(rng.randint(1, 8)))


def multi_turn_chat(rng: random.Random, count: int) -> Iterator[Request]:
    """Chats under one common system prompt; readers think about a minute."""
    blocks = _Blocks()
    system = blocks.fresh(2)

    def opened(now: float) -> _Session:
        # Half of all chats end after their first answer, as in public traces.
        turns = 1 if rng.random() < 0.5 else 2 + int(rng.expovariate(1 / 5))
        return _Session(now, system + blocks.fresh(rng.randint(1, 12)), turns)

    yield from _sessions(
        rng,
        blocks,
        count,
        opened,
        opening_rate=0.5,
        gap=lambda: rng.lognormvariate(4.1, 0.9),
        grow=lambda: rng.randint(0, 2),
    )


def agent_fleet(rng: random.Random, count: int) -> Iterator[Request]:
    """24 agents in step: long contexts that grow by a tool result every few seconds."""
    blocks = _Blocks()
    tools = [blocks.fresh(16) for _ in range(4)]
    agents = 24

    def opened(now: float) -> _Session:
        return _Session(now, rng.choice(tools) + blocks.fresh(6), rng.randint(20, 60))

    live = [opened(rng.uniform(0, 20)) for _ in range(agents)]
    for _ in range(count):
        agent = min(live, key=lambda session: session.due_s)
        request = _finished(rng, blocks, agent.due_s, agent.context)
        yield request
        agent.context = request.path + blocks.fresh(rng.randint(0, 3))
        # Most tool calls return at once; a build or a person takes minutes.
        agent.due_s += rng.expovariate(1 / 90) if rng.random() < 0.1 else rng.uniform(3, 15)
        agent.turns_left -= 1
        if agent.turns_left == 0:
            live[live.index(agent)] = opened(agent.due_s)


def scan_pollution(rng: random.Random, count: int) -> Iterator[Request]:
    """The chats of ``multi_turn_chat`` with bursts of long documents read once."""
    blocks = _Blocks()
    chats = multi_turn_chat(random.Random(rng.random()), count)
    # Documents get ids above everything the chats can reach.
    offset = 1 << 40
    made = 0
    for chat in chats:
        if made % 100 >= 60:
            document = tuple(offset + b for b in blocks.fresh(rng.randint(20, 60)))
            yield Request(chat.arrival_s, document, (), rng.randint(20, 120))
            made += 1
        yield chat
        made += 1


def phase_shift(rng: random.Random, count: int) -> Iterator[Request]:
    """Shared prefixes whose popular set is replaced after each third."""
    blocks = _Blocks()
    now = 0.0
    weights = [1 / rank for rank in range(1, 25)]
    prompts: list[tuple[int, ...]] = []
    for index in range(count):
        if index % max(1, -(-count // 3)) == 0:
            prompts = [blocks.fresh(rng.randint(8, 32)) for _ in range(24)]
        now += rng.expovariate(4.0)
        prompt = rng.choices(prompts, weights)[0]
        yield _finished(rng, blocks, now, prompt + blocks.fresh(rng.randint(1, 4)))


WORKLOADS: dict[str, Callable[[random.Random, int], Iterator[Request]]] = {
    "shared-prefixes": shared_prefixes,
    "multi-turn-chat": multi_turn_chat,
    "agent-fleet": agent_fleet,
    "scan-pollution": scan_pollution,
    "phase-shift": phase_shift,
}


def workload(name: str, count: int, seed: int = 0) -> Trace:
    """The first ``count`` requests of a built-in workload.

    Raises:
        KeyError: no such workload; see ``WORKLOADS``.
    """
    # A string seeds Random through SHA-512: the same on every machine and run.
    rng = random.Random(f"{name}/{seed}")
    requests = list(itertools.islice(WORKLOADS[name](rng, count), count))
    requests.sort(key=lambda request: request.arrival_s)
    return Trace(name, requests, BLOCK_TOKENS, "built-in", {"seed": seed, "count": count})


def _sessions(
    rng: random.Random,
    blocks: _Blocks,
    count: int,
    opened: Callable[[float], _Session],
    opening_rate: float,
    gap: Callable[[], float],
    grow: Callable[[], int],
) -> Iterator[Request]:
    """Sessions that open at random and each wait ``gap`` seconds between turns."""
    live: list[_Session] = []
    next_opening = rng.expovariate(opening_rate)
    for _ in range(count):
        first = min(live, key=lambda session: session.due_s, default=None)
        if first is None or next_opening < first.due_s:
            first = opened(next_opening)
            live.append(first)
            next_opening += rng.expovariate(opening_rate)
        request = _finished(rng, blocks, first.due_s, first.context)
        yield request
        first.context = request.path + blocks.fresh(grow())
        first.due_s += gap()
        first.turns_left -= 1
        if first.turns_left == 0:
            live.remove(first)


def _finished(rng: random.Random, blocks: _Blocks, now: float, prompt: tuple[int, ...]) -> Request:
    """A request whose answer length has the long tail of chat answers."""
    tokens = min(2048, 1 + int(rng.lognormvariate(5.3, 1.0)))
    return Request(now, prompt, blocks.fresh(tokens // BLOCK_TOKENS), tokens)
