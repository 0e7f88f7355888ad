# SPDX-License-Identifier: Apache-2.0
"""What a proposer is and how its draft tree is verified."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ROOT = -1


@dataclass(frozen=True)
class Draft:
    """A draft tree without its root: a node's parent comes before it, ``ROOT`` (-1) at the top."""

    tokens: Sequence[int]
    parents: Sequence[int]

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> Draft:
        return cls(tokens, range(-1, len(tokens) - 1))


def accepted(draft: Draft, truth: Sequence[int]) -> int:
    """Nodes on the longest path from the root that ``truth`` starts with, as greedy verification
    accepts them."""
    children = {
        (parent, token): node
        for node, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True))
    }
    node, n = ROOT, 0
    for token in truth:
        found = children.get((node, token))
        if found is None:
            break
        node = found
        n += 1
    return n


class Proposer(ABC):
    """One proposer, for all requests of one set of texts.

    ``begin``, ``update`` and ``propose`` are timed with all they call. Arrays are int32 views of the request's tokens.
    """

    name: str

    def __init__(self, width: int) -> None:
        self.width = width  # nodes that one verification can hold, the root included

    @abstractmethod
    def begin(self, request: int, prompt: np.ndarray) -> None:
        """A request starts; its prompt may be indexed."""

    @abstractmethod
    def update(self, requests: Sequence[int], tokens: Sequence[np.ndarray]) -> None:
        """What the target model produced for a batch of requests since the last update."""

    @abstractmethod
    def propose(self, requests: Sequence[int]) -> Any:
        """Drafts of at most ``width - 1`` tokens for a batch of requests, in the form that the
        proposer's own engine takes."""

    def drafts(self, proposed: Any) -> Sequence[Draft]:
        """The same in ours; not timed."""
        return proposed

    @abstractmethod
    def end(self, request: int) -> None:
        """A request has finished."""

    def stored(self) -> tuple[int, int] | None:
        """Bytes held and tokens they hold, where that is known."""
        return None
