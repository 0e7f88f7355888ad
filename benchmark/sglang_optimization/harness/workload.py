# SPDX-License-Identifier: Apache-2.0
"""Seeded chat traffic in which it matters what the prefix cache keeps.

Three kinds of client share the cache, as in production traces: agents, which come back at
fairly regular intervals (the time their tools take) with a history that grows each turn;
visitors, who ask one thing and never return; and long documents read once (a scan). All of
them start with one of a few system prompts. When the agents' histories together exceed the
cache, recency alone evicts each of them just before it returns. The assistant's side of the
history is scripted, so every server gets exactly the same tokens, whatever it answers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from .driver import Request

_SUBJECTS = "scheduler cache router tokenizer compiler gateway planner index ledger queue".split()
_VERBS = "keeps drops moves checks reads merges delays batches counts repeats".split()
_OBJECTS = "requests pages prefixes tokens messages results timers batches records keys".split()
_PLACES = (
    "on the second node",
    "before the next step",
    "while the first batch runs",
    "after a restart",
    "in the shared pool",
    "for every tenant",
    "at the page boundary",
    "under heavy load",
)
_QUESTIONS = (
    "Why does this happen?",
    "What should I look at first?",
    "Can you say that more briefly?",
    "How would you measure it?",
    "Is there a simpler way?",
)


@dataclass(frozen=True)
class Conversations:
    """Parameters of the traffic. Lengths are in words (about 1.3 tokens each).

    Attributes:
        agents: clients that come back.
        turns: fewest and most turns of an agent.
        visitors: clients with a single turn.
        scans: single requests with a long document.
        gap_s: mean time between the turns of an agent.
        gap_spread: a gap is uniform in ``gap_s * (1 - gap_spread, 1 + gap_spread)``.

    Agents begin within the first gap; visitors and scans come at any time until the agents'
    last turns.
    """

    agents: int = 6
    turns: tuple[int, int] = (9, 9)
    visitors: int = 20
    scans: int = 2
    system_prompts: int = 3
    system_words: int = 60
    user_words: tuple[int, int] = (10, 30)
    reply_words: tuple[int, int] = (20, 40)
    scan_words: tuple[int, int] = (150, 300)
    max_new_tokens: int = 4
    gap_s: float = 10.0
    gap_spread: float = 0.4

    def __post_init__(self) -> None:
        for name in ("turns", "user_words", "reply_words", "scan_words"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise ValueError(f"{name} must be 1 <= low <= high, got {(low, high)}")
        if self.system_prompts < 1 or self.agents + self.visitors + self.scans < 1:
            raise ValueError("at least one system prompt and one client are needed")
        if not 0 <= self.gap_spread < 1:
            raise ValueError(f"gap_spread must be in [0, 1), got {self.gap_spread}")

    def requests(self, seed: int = 0) -> list[Request]:
        """Returns the requests in order of arrival; equal seeds give equal requests."""
        rng = random.Random(seed)
        systems = [
            f"You are assistant number {n}. " + text(rng, self.system_words)
            for n in range(self.system_prompts)
        ]
        span_s = self.gap_s * sum(self.turns) / 2
        found: list[Request] = []
        for n in range(self.agents):
            found += self._agent(rng, f"agent-{n}", rng.choice(systems))
        for n in range(self.visitors):
            question = self._question(rng)
            found.append(self._single(rng, f"visitor-{n}", rng.choice(systems), question, span_s))
        for n in range(self.scans):
            document = "Summarise: " + text(rng, rng.randint(*self.scan_words))
            found.append(self._single(rng, f"scan-{n}", rng.choice(systems), document, span_s))
        return sorted(found, key=lambda request: request.arrival_s)

    def _agent(self, rng: random.Random, name: str, system: str) -> list[Request]:
        arrival = rng.uniform(0, self.gap_s)
        messages = [_say("system", system)]
        found = []
        for _ in range(rng.randint(*self.turns)):
            messages.append(_say("user", self._question(rng)))
            found.append(self._request(messages, arrival, name))
            messages.append(_say("assistant", text(rng, rng.randint(*self.reply_words))))
            arrival += self.gap_s * rng.uniform(1 - self.gap_spread, 1 + self.gap_spread)
        return found

    def _single(
        self, rng: random.Random, name: str, system: str, content: str, span_s: float
    ) -> Request:
        messages = [_say("system", system), _say("user", content)]
        return self._request(messages, rng.uniform(0, span_s), name)

    def _question(self, rng: random.Random) -> str:
        return text(rng, rng.randint(*self.user_words)) + " " + rng.choice(_QUESTIONS)

    def _request(
        self, messages: Sequence[dict[str, str]], arrival_s: float, session: str
    ) -> Request:
        return Request(
            prompt=tuple(messages),
            max_new_tokens=self.max_new_tokens,
            arrival_s=arrival_s,
            session=session,
            sampling={"ignore_eos": True},
        )


def _say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def text(rng: random.Random, words: int) -> str:
    """Returns about ``words`` words of plain sentences."""
    sentences: list[str] = []
    written = 0
    while written < words:
        sentence = (
            f"The {rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {rng.randint(2, 99)} "
            f"{rng.choice(_OBJECTS)} {rng.choice(_PLACES)}."
        )
        sentences.append(sentence)
        written += len(sentence.split())
    return " ".join(sentences)
