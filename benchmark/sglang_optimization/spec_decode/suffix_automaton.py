# SPDX-License-Identifier: Apache-2.0
"""This fork's proposer."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from .drafts import Draft, Proposer

_VOCABULARY = 2**31 - 2
_NOTHING = np.empty(0, np.int64)


def missing() -> str | None:
    if importlib.util.find_spec("sgl_kernel_ext") is None:
        return "needs sgl-kernel-ext: pip install ./sgl-kernel-ext"
    return None


class SuffixAutomatonProposer(Proposer):
    def __init__(self, width: int, threshold: float, **settings: Any) -> None:
        super().__init__(width)
        from sgl_kernel_ext.suffix_automaton import DraftProposer, ProposerConfig

        self._proposer = DraftProposer(
            ProposerConfig(
                draft_token_num=width, vocab_size=_VOCABULARY, threshold=threshold, **settings
            )
        )

    def begin(self, request: int, prompt: np.ndarray) -> None:
        self._proposer.begin(request, prompt)

    def update(self, requests: Sequence[int], tokens: Sequence[np.ndarray]) -> None:
        for request, produced in zip(requests, tokens, strict=True):
            self._proposer.append(request, produced)

    def propose(self, requests: Sequence[int]) -> Any:
        ids = np.array(requests, np.uint64)
        return self._proposer.step_flat(ids, _NOTHING, np.zeros(len(ids) + 1, np.int64))

    def drafts(self, proposed: Any) -> list[Draft]:
        tokens, parents = proposed.tokens.tolist(), (proposed.parents - 1).tolist()
        return [
            Draft(row[1:size], above[1:size])
            for row, above, size in zip(tokens, parents, proposed.sizes.tolist(), strict=True)
        ]

    def end(self, request: int) -> None:
        self._proposer.end(request)

    def stored(self) -> tuple[int, int] | None:
        counters = self._proposer.counters()
        size = counters["own_bytes"] + counters["shared_bytes"]
        return size, counters["own_tokens"] + counters["shared_tokens"]


def full(width: int, threshold: float) -> Proposer:
    return SuffixAutomatonProposer(width, threshold, mode="full")


def fast(width: int, threshold: float) -> Proposer:
    return SuffixAutomatonProposer(width, threshold, mode="fast")


def chain(width: int, threshold: float) -> Proposer:
    return SuffixAutomatonProposer(width, threshold, mode="fast", branches=1, share_outputs=False)
