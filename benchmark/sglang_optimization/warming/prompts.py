# SPDX-License-Identifier: Apache-2.0
"""Prompts of a wanted length, and open-loop traffic, from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import Request

# Words that SmolLM2's tokenizer knows as one token each, with the space before them.
_WORDS = (
    "time year people way day man thing woman life child world school state family student "
    "group country problem hand part place case week company system program question work "
    "government number night point home water room mother area money story fact month lot "
    "right study book eye job word business issue side kind head house service friend father "
    "power hour game line end member law car city community name president team minute idea "
    "body information back parent face others level office door health person art war history"
).split()


def text(rng: random.Random, words: int) -> str:
    """``words`` words; about as many tokens."""
    return " ".join(rng.choice(_WORDS) for _ in range(words))


def listed_prompts(rng: random.Random, count: int, words: int, name: str) -> list[dict[str, Any]]:
    """``count`` entries of a prompts file, different from their first words on."""
    return [
        {"name": f"{name}-{i}", "text": f"Document {name} {i}. {text(rng, words)}"}
        for i in range(count)
    ]


def write_file(path: Path, prompts: Sequence[dict[str, Any]]) -> Path:
    """Write a prompts file."""
    path.write_text(json.dumps({"prompts": list(prompts)}))
    return path


def first_requests(
    rng: random.Random, prompts: Sequence[dict[str, Any]], each: int, new_tokens: int
) -> list[Request]:
    """``each`` requests for every prompt, each with one new line; prompts take turns."""
    return [
        Request(f"{prompt['text']}\n{text(rng, 8)}?", new_tokens)
        for _ in range(each)
        for prompt in prompts
    ]


@dataclass(frozen=True)
class Traffic:
    """Open-loop traffic: Poisson arrivals of prompts that share nothing.

    Attributes:
        rate: requests a second.
        requests: how many.
        words: fewest and most words of a prompt (uniform).
        new_tokens: tokens generated for each.
    """

    rate: float
    requests: int
    words: tuple[int, int]
    new_tokens: int

    def at(self, rate: float) -> Traffic:
        """The same at another rate."""
        return replace(self, rate=rate)

    def make(self, rng: random.Random) -> list[Request]:
        """The requests with their arrival times."""
        arrival, made = 0.0, []
        for _ in range(self.requests):
            arrival += rng.expovariate(self.rate)
            made.append(Request(text(rng, rng.randint(*self.words)), self.new_tokens, arrival))
        return made
