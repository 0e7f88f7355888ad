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
DEFAULT = tuple(PROPOSERS)


def missing(name: str) -> str | None:
    """Why a proposer cannot run here; None if it can."""
    if name in ("full", "fast", "sam-chain"):
        return suffix_automaton.missing()
    if name.startswith("upstream"):
        return upstream.missing()
    return arctic.missing() if name == "arctic" else None


def check_names(names: list[str]) -> list[str]:
    """Raises BenchError on an unknown name, listing the known ones."""
    for name in names:
        if name not in PROPOSERS:
            raise BenchError(f"no proposer {name!r}; choose from {', '.join(PROPOSERS)}")
    return names


def create(name: str, width: int, threshold: float) -> Proposer:
    proposer = PROPOSERS[name][0](width, threshold)
    proposer.name = name
    return proposer
