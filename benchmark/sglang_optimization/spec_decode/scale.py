# SPDX-License-Identifier: Apache-2.0
"""``--scale``: what a token and a proposal cost as a hostile text grows to 128k tokens."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any

import numpy as np

from common import cli, progress, result, table

from . import proposers

PROPOSERS = ("full", "fast", "arctic")
WIDTH = 12
LENGTHS = (2_048, 8_192, 32_768, 131_072)
WINDOW = 2_048  # tokens measured up to each length, as output
PIECE = 4  # tokens a step
COLUMNS = (
    table.Column("text", "text", text=True),
    table.Column("proposer", "proposer", text=True),
    *(table.Column(f"update_{n}", f"{n // 1024}k", table.number(2)) for n in LENGTHS),
    table.Column("growth", "last/first", table.ratio),
    table.Column("propose_us", "propose us", table.number(1)),
    table.Column("prompt_tokens_per_s", "prompt tokens/s", table.number(0)),
    table.Column("bytes_per_token", "bytes a token", table.number(0)),
)


def _phrases(length: int) -> list[int]:
    first, second = list(range(10, 17)), [*range(10, 14), 30, 31, 32, 33, 34]
    return ((first + second) * (length // 16 + 1))[:length]


def _random_phrases(length: int) -> list[int]:
    """Two phrases in random order: what follows them never settles."""
    rng = random.Random(1)
    out: list[int] = []
    while len(out) < length:
        out += rng.choice(([10, 11, 12, 13, 14], [10, 11, 12, 13, 20, 21]))
    return out[:length]


TEXTS: dict[str, Callable[[int], list[int]]] = {
    "one token": lambda length: [7] * length,
    "two phrases in turn": _phrases,
    "two phrases at random": _random_phrases,
    "always a new successor": lambda length: [n // 2 if n % 2 else 0 for n in range(length)],
    "random tokens": lambda length: np.random.default_rng(1).integers(0, 32_000, length).tolist(),
}


def run(options: argparse.Namespace, names: Sequence[str]) -> int:
    """Measures every text with every proposer."""
    rows: list[dict[str, Any]] = []
    with progress.steps(len(TEXTS) * len(names)) as bar:
        for text, make in TEXTS.items():
            tokens = np.array(make(LENGTHS[-1]), np.int32)
            for name in names:
                bar.start(f"{name}, {text}")
                rows.append({"text": text, "proposer": name} | _measure(name, tokens))
                bar.finish()
    table.show(
        "Update, us of processor time a token, by length of the text",
        COLUMNS,
        rows,
        note=f"each the mean of {WINDOW} output tokens in steps of {PIECE}, one draft a step",
    )
    if options.json:
        settings = {"width": WIDTH, "lengths": LENGTHS, "window": WINDOW, "piece": PIECE}
        result.write(options.json, result.document("spec_decode_scale", settings, rows))
    return cli.EXIT_OK


def _measure(name: str, text: np.ndarray) -> dict[str, Any]:
    row: dict[str, Any] = {}
    proposer = proposers.create(name, WIDTH)
    spent, proposing, proposals = 0.0, 0.0, 0
    at = 0
    for request, length in enumerate(LENGTHS):
        # Up to the window the text is a prompt, each length a request of its own.
        at = length - WINDOW
        began = process_time()
        proposer.begin(request, text[:at])
        spent = process_time() - began
        update = 0.0
        for start in range(at, length, PIECE):
            began = process_time()
            proposer.update([request], [text[start : start + PIECE]])
            update += process_time() - began
            began = process_time()
            proposer.propose([request])
            proposing += process_time() - began
            proposals += 1
        row[f"update_{length}"] = 1e6 * update / WINDOW
        stored = proposer.stored()
        row["bytes_per_token"] = stored[0] / stored[1] if stored else None
        proposer.end(request)
    row["prompt_tokens_per_s"] = at / spent if spent else None
    row["growth"] = row[f"update_{LENGTHS[-1]}"] / row[f"update_{LENGTHS[0]}"]
    row["propose_us"] = 1e6 * proposing / proposals
    return row
