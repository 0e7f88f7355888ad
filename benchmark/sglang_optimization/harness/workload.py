# SPDX-License-Identifier: Apache-2.0
"""Seeded chat traffic in which it matters what the prefix cache keeps.

Three kinds of client share the cache, as in production traces: sessions that come back turn
after turn with a growing history, visitors who ask one thing and never return, and long
documents read once (a scan, which pushes the others out of a recency-ordered cache). All of
them start with one of a few system prompts. The assistant's side of the history is scripted,
so every server gets exactly the same tokens, whatever it answers.
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
        sessions: clients that come back.
        turns: fewest and most turns of a session.
        visitors: clients with a single turn.
        scans: single requests with a long document.
        gap_s: mean time between the turns of a session (exponential).
        span_s: sessions, visitors and scans begin within this time.
    """

    sessions: int = 12
    turns: tuple[int, int] = (3, 7)
    visitors: int = 24
    scans: int = 6
    system_prompts: int = 3
    system_words: int = 90
    user_words: tuple[int, int] = (15, 45)
    reply_words: tuple[int, int] = (30, 70)
    scan_words: tuple[int, int] = (250, 450)
    max_new_tokens: int = 4
    gap_s: float = 12.0
    span_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("turns", "user_words", "reply_words", "scan_words"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise ValueError(f"{name} must be 1 <= low <= high, got {(low, high)}")
        if self.system_prompts < 1 or self.sessions + self.visitors + self.scans < 1:
            raise ValueError("at least one system prompt and one client are needed")

    def requests(self, seed: int = 0) -> list[Request]:
        """Returns the requests in order of arrival; equal seeds give equal requests."""
        rng = random.Random(seed)
        systems = [
            f"You are assistant number {n}. " + text(rng, self.system_words)
            for n in range(self.system_prompts)
        ]
        found: list[Request] = []
        for n in range(self.sessions):
            found += self._session(
                rng, f"session-{n}", rng.choice(systems), rng.randint(*self.turns)
            )
        for n in range(self.visitors):
            found += self._session(rng, f"visitor-{n}", rng.choice(systems), 1)
        for n in range(self.scans):
            document = text(rng, rng.randint(*self.scan_words))
            messages = [_say("system", rng.choice(systems)), _say("user", f"Summarise: {document}")]
            found.append(self._request(messages, rng.uniform(0, self.span_s), f"scan-{n}"))
        return sorted(found, key=lambda request: request.arrival_s)

    def _session(self, rng: random.Random, name: str, system: str, turns: int) -> list[Request]:
        arrival = rng.uniform(0, self.span_s)
        messages = [_say("system", system)]
        found = []
        for _ in range(turns):
            question = text(rng, rng.randint(*self.user_words)) + " " + rng.choice(_QUESTIONS)
            messages.append(_say("user", question))
            found.append(self._request(messages, arrival, name))
            messages.append(_say("assistant", text(rng, rng.randint(*self.reply_words))))
            arrival += rng.expovariate(1 / self.gap_s)
        return found

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
