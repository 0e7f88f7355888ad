# SPDX-License-Identifier: Apache-2.0
"""Seeded token texts that need neither a file nor a tokenizer."""

from __future__ import annotations

import random
from collections.abc import Callable

from .samples import Sample

VOCABULARY = 32_000


class _Language:
    """Words of one to three tokens with a Zipf-like frequency."""

    def __init__(self, rng: random.Random, words: int = 4000) -> None:
        self.rng = rng
        self.words = [
            [rng.randrange(VOCABULARY) for _ in range(rng.choice((1, 1, 2, 3)))]
            for _ in range(words)
        ]
        self.weights = [1 / (rank + 3) for rank in range(words)]

    def text(self, length: int) -> list[int]:
        out: list[int] = []
        while len(out) < length:
            out += self.rng.choices(self.words, self.weights)[0]
        return out[:length]


def code_edit(rng: random.Random, requests: int) -> list[Sample]:
    """The output repeats a file of the prompt with a few replaced spans."""
    language, samples = _Language(rng), []
    for _ in range(requests):
        source = language.text(rng.randint(200, 600))
        output = list(source)
        for _ in range(rng.randint(2, 8)):
            at = rng.randrange(len(output))
            output[at : at + rng.randint(1, 6)] = language.text(rng.randint(1, 10))
        samples.append(Sample.of(language.text(60) + source + language.text(20), output))
    return samples


def tool_calls(rng: random.Random, requests: int) -> list[Sample]:
    """Turns of agents: long growing prompts, short outputs from templates with arguments."""
    language, samples = _Language(rng), []
    templates = [language.text(rng.randint(10, 40)) for _ in range(12)]
    context: list[int] = []
    for turn in range(requests):
        if turn % 10 == 0:
            context = language.text(500)
        template = list(rng.choice(templates))
        for _ in range(2):
            at = rng.randrange(len(template))
            start = rng.randrange(len(context) - 4)
            template[at : at + 2] = context[start : start + 3]
        samples.append(Sample.of(list(context), template))
        context += template + language.text(rng.randint(20, 80))
    return samples


def free_text(rng: random.Random, requests: int) -> list[Sample]:
    """Nothing is copied on purpose: only frequent words come back. Speculation gains little."""
    language = _Language(rng)
    return [
        Sample.of(language.text(rng.randint(20, 300)), language.text(rng.randint(50, 250)))
        for _ in range(requests)
    ]


WORKLOADS: dict[str, Callable[[random.Random, int], list[Sample]]] = {
    "code-edit": code_edit,
    "tool-calls": tool_calls,
    "free-text": free_text,
}


def built_in(name: str, requests: int, seed: int) -> list[Sample]:
    """``requests`` samples of a workload; equal seeds give equal samples."""
    return WORKLOADS[name](random.Random(f"{seed}/{name}"), requests)
