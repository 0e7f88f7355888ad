# SPDX-License-Identifier: Apache-2.0
"""The proposers that can be compared, by name."""

from __future__ import annotations

from collections.abc import Callable

from common.cli import BenchError

from . import arctic, lookup, suffix_automaton, upstream
from .drafts import Proposer

# name -> (factory(width, threshold), what it is); the order of the result table.
PROPOSERS: dict[str, tuple[Callable[[int, float], Proposer], str]] = {
    "full": (suffix_automaton.full, "merged, what ships: mode full"),
    "fast": (suffix_automaton.fast, "merged, mode fast"),
    "sam-chain": (suffix_automaton.chain, "a request's own automaton alone, one chain"),
    "upstream": (upstream.as_shipped, "n-gram corpus as SGLang ships it"),
    "upstream+prompt": (upstream.with_prompt, "the same, prompts inserted"),
    "upstream-prob+prompt": (upstream.prob_with_prompt, "the same, match type PROB"),
    "vllm-ngram": (
        lookup.vllm_ngram,
        "vLLM-style n-gram: longest match of up to 5, its first place",
    ),
    "prompt-lookup": (lookup.prompt_lookup, "prompt lookup: 3 tokens down to 1, their first place"),
    "arctic": (arctic.local_and_global, "Arctic suffix decoding: tree, local and global"),
}
WITH_THRESHOLD = ("full", "fast", "sam-chain", "arctic")
# With a threshold, `full` drafts as sparingly as Arctic does.
DEFAULT = ("full", "full@0.15", *(name for name in PROPOSERS if name != "full"))


def parse(choice: str) -> tuple[str, float]:
    """Name and threshold of ``NAME`` or ``NAME@P``, P from 0 to 1 (0: the proposer's default).

    Raises:
        BenchError: an unknown name, or no such threshold.
    """
    name, _, share = choice.partition("@")
    if name not in PROPOSERS:
        raise BenchError(f"no proposer {name!r}; choose from {', '.join(PROPOSERS)}")
    if not share and choice == name:
        return name, 0.0
    try:
        threshold = float(share)
    except ValueError:
        threshold = -1.0
    if not 0 <= threshold <= 1:
        raise BenchError(f"{choice!r}: {share!r} is not a threshold between 0 and 1")
    if name not in WITH_THRESHOLD:
        raise BenchError(f"{name} has no threshold; {', '.join(WITH_THRESHOLD)} have")
    return name, threshold


def missing(name: str) -> str | None:
    """Why a proposer cannot run here; None if it can."""
    if name in ("full", "fast", "sam-chain"):
        return suffix_automaton.missing()
    if name.startswith("upstream"):
        return upstream.missing()
    return arctic.missing() if name == "arctic" else None


def create(choice: str, width: int) -> Proposer:
    """The proposer of ``NAME`` or ``NAME@P``."""
    name, threshold = parse(choice)
    proposer = PROPOSERS[name][0](width, threshold)
    proposer.name = choice
    return proposer
