# SPDX-License-Identifier: Apache-2.0
"""Upstream's n-gram corpus, driven as its worker drives it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import numpy as np

from .drafts import Draft, Proposer

_DEPTH = 18  # upstream's default: both what is inserted a step and what is matched


def missing() -> str | None:
    try:
        found = importlib.util.find_spec("sglang.srt.speculative.cpp_ngram.ngram_corpus")
    except ImportError as error:
        return f"sglang cannot be imported here: {error}"
    return None if found else "needs sglang"


class NgramCorpusProposer(Proposer):
    """The corpus itself (its C++ is built at first use). Unused places hold token 0 below the root
    and count as drafted, since upstream verifies them."""

    def __init__(self, width: int, match_type: str, prompts: bool) -> None:
        super().__init__(width)
        from sglang.srt.speculative.cpp_ngram.ngram_corpus import NgramCorpus

        self._corpus = NgramCorpus(
            max_trie_depth=_DEPTH,
            min_bfs_breadth=1,
            max_bfs_breadth=10,
            draft_token_num=width,
            match_type=match_type,
            capacity=10_000_000,
        )
        self._prompts = prompts
        self._tails: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    def begin(self, request: int, prompt: np.ndarray) -> None:
        if self._prompts and len(prompt):
            self._corpus.batch_put([prompt.tolist()])
            self._corpus.synchronize()
        self._tails[request] = prompt[-_DEPTH:].tolist()
        self._lengths[request] = len(prompt)

    def update(self, requests: Sequence[int], tokens: Sequence[np.ndarray]) -> None:
        for request, produced in zip(requests, tokens, strict=True):
            self._tails[request] = (self._tails[request] + produced.tolist())[-_DEPTH:]
            self._lengths[request] += len(produced)
        self._corpus.batch_put([self._tails[request] for request in requests])
        self._corpus.synchronize()

    def propose(self, requests: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        return self._corpus.batch_get(
            [str(request) for request in requests],
            [self._tails[request] for request in requests],
            [self._lengths[request] for request in requests],
        )

    def drafts(self, proposed: tuple[np.ndarray, np.ndarray]) -> list[Draft]:
        tokens, mask = proposed
        width = self.width
        above = np.tril(mask.reshape(-1, width, width) != 0, k=-1)
        parents = np.where(above, np.arange(width), -1).max(axis=2) - 1
        rows = tokens.reshape(-1, width)
        return [
            Draft(row[1:], parent[1:])
            for row, parent in zip(rows.tolist(), parents.tolist(), strict=True)
        ]

    def end(self, request: int) -> None:
        self._corpus.erase_match_state([str(request)])
        del self._tails[request], self._lengths[request]


def as_shipped(width: int, threshold: float) -> Proposer:
    return NgramCorpusProposer(width, "BFS", prompts=False)


def with_prompt(width: int, threshold: float) -> Proposer:
    return NgramCorpusProposer(width, "BFS", prompts=True)


def prob_with_prompt(width: int, threshold: float) -> Proposer:
    return NgramCorpusProposer(width, "PROB", prompts=True)
