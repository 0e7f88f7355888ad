# SPDX-License-Identifier: Apache-2.0
"""What ``--engine`` asks: each call of a workload makes another prompt of its kind."""

from __future__ import annotations

import random
from collections.abc import Callable

_NOUNS = "value price speed count score weight width delay level total margin offset".split()
_THINGS = "apples lamps boats chairs coins doors kites maps pens shoes tents bells".split()
_PLACES = "a lighthouse,a small library,an old bridge,a night train,a winter garden".split(",")
_QUESTIONS = (
    "Why is the sky blue?",
    "How do vaccines work?",
    "What makes a good friend?",
    "Why do leaves change colour in autumn?",
    "How does a refrigerator keep food cold?",
    "What is the difference between weather and climate?",
)


def _code(rng: random.Random) -> str:
    noun, other = rng.sample(_NOUNS, 2)
    return (
        f"def mean_{noun}({noun}s):\n    total = {rng.randint(0, 9)}\n"
        f"    for {noun} in {noun}s:\n        total += {noun}\n    return total / len({noun}s)\n\n"
        f"def scale_{noun}({noun}s, {other}):\n"
        f"    return [{noun} * {other} for {noun} in {noun}s]\n"
    )


def copy(rng: random.Random) -> str:
    """The answer stands in the prompt."""
    return f"Repeat this code exactly, without comments:\n```python\n{_code(rng)}```"


def records(rng: random.Random) -> str:
    """Every line of the answer repeats the form of those in the prompt."""
    lines = [
        f'{{"id": {i}, "item": "{rng.choice(_THINGS)}", "count": {rng.randint(1, 99)}}}'
        for i in range(1, 7)
    ]
    return "Continue this list of records up to id 20:\n" + "\n".join(lines)


def story(rng: random.Random) -> str:
    """Nothing to copy but the model's own habits."""
    return f"Tell me a short story about {rng.choice(_PLACES)} and {rng.randint(2, 9)} friends."


def question(rng: random.Random) -> str:
    """An answer in prose."""
    return rng.choice(_QUESTIONS)


# Repetitive ones first.
WORKLOADS: dict[str, Callable[[random.Random], str]] = {
    "copy": copy,
    "records": records,
    "story": story,
    "question": question,
}
