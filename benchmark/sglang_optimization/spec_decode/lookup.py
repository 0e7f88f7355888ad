# SPDX-License-Identifier: Apache-2.0
"""Proposers that search the request's own tokens anew every step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .drafts import Draft, Proposer


class LookupProposer(Proposer):
    """Copies what followed the first earlier place of the last n tokens, n from ``longest`` down
    to ``shortest``; no index is kept."""

    def __init__(self, width: int, longest: int, shortest: int) -> None:
        super().__init__(width)
        self._longest, self._shortest = longest, shortest
        self._texts: dict[int, np.ndarray] = {}
        self._lengths: dict[int, int] = {}

    def begin(self, request: int, prompt: np.ndarray) -> None:
        text = np.empty(len(prompt) + 1024, np.int32)
        text[: len(prompt)] = prompt
        self._texts[request], self._lengths[request] = text, len(prompt)

    def update(self, requests: Sequence[int], tokens: Sequence[np.ndarray]) -> None:
        for request, produced in zip(requests, tokens, strict=True):
            text, length = self._texts[request], self._lengths[request]
            if length + len(produced) > len(text):
                text = self._texts[request] = np.concatenate([text, np.empty_like(text)])
            text[length : length + len(produced)] = produced
            self._lengths[request] = length + len(produced)

    def propose(self, requests: Sequence[int]) -> Sequence[Draft]:
        return [self._find(self._texts[r][: self._lengths[r]]) for r in requests]

    def _find(self, text: np.ndarray) -> Draft:
        # Places whose next token exists and that end with the last token, then longer matches.
        places = np.flatnonzero(text[:-1] == text[-1])
        best = places[:1] if self._shortest <= 1 else places[:0]
        for n in range(2, self._longest + 1):
            places = places[places >= n - 1]
            places = places[text[places - (n - 1)] == text[-n]]
            if not len(places):
                break
            if n >= self._shortest:
                best = places[:1]
        if not len(best):
            return Draft.chain([])
        start = int(best[0]) + 1
        return Draft.chain(text[start : start + self.width - 1].tolist())

    def end(self, request: int) -> None:
        del self._texts[request], self._lengths[request]


def vllm_ngram(width: int, threshold: float) -> Proposer:
    return LookupProposer(width, longest=5, shortest=2)


def prompt_lookup(width: int, threshold: float) -> Proposer:
    return LookupProposer(width, longest=3, shortest=1)
