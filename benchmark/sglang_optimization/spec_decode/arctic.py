# SPDX-License-Identifier: Apache-2.0
"""Arctic Inference's suffix decoding, where it is installed (requirements/anchors.txt)."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from .drafts import Draft, Proposer

_DEPTH = 64
_LEAST_PROBABILITY = 0.1  # Arctic's default


def missing() -> str | None:
    try:
        importlib.import_module("arctic_inference.suffix_decoding.cache")
    except (ImportError, ValueError) as error:
        return f"needs arctic-inference, see requirements/anchors.txt ({error})"
    return None


class ArcticProposer(Proposer):
    def __init__(self, width: int, threshold: float) -> None:
        super().__init__(width)
        from arctic_inference.suffix_decoding.cache import SuffixDecodingCache

        self._cache: Any = SuffixDecodingCache(_DEPTH)
        self._least = threshold or _LEAST_PROBABILITY
        self._tails: dict[int, np.ndarray] = {}
        self._tokens: dict[int, int] = {}
        self._global_tokens = 0

    def begin(self, request: int, prompt: np.ndarray) -> None:
        self._cache.start_request(request, prompt)
        self._tails[request], self._tokens[request] = prompt[-_DEPTH:], len(prompt)

    def update(self, requests: Sequence[int], tokens: Sequence[np.ndarray]) -> None:
        for request, produced in zip(requests, tokens, strict=True):
            self._cache.add_active_response(request, produced)
            tail = np.concatenate([self._tails[request], produced])
            self._tails[request] = tail[-_DEPTH:]
            self._tokens[request] += len(produced)
            self._global_tokens += len(produced)

    def propose(self, requests: Sequence[int]) -> list[Any]:
        return [
            self._cache.speculate(
                request,
                self._tails[request],
                max_spec_tokens=self.width - 1,
                min_token_prob=self._least,
                use_tree_spec=True,
            )
            for request in requests
        ]

    def drafts(self, proposed: list[Any]) -> list[Draft]:
        return [Draft(draft.token_ids, draft.parents) for draft in proposed]

    def end(self, request: int) -> None:
        self._cache.stop_request(request)
        del self._tails[request], self._tokens[request]

    def stored(self) -> tuple[int, int] | None:
        trees = [*self._cache._local_trees.values(), self._cache._global_tree]
        size = sum(tree.estimate_memory() for tree in trees)
        return size, sum(self._tokens.values()) + self._global_tokens


def local_and_global(width: int, threshold: float) -> Proposer:
    return ArcticProposer(width, threshold)
