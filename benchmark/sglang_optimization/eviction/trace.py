# SPDX-License-Identifier: Apache-2.0
"""Requests and traces in the terms of the benchmark.

The unit is the trace's block (512 tokens in Mooncake traces, 16 in Qwen-Bailian
ones). The replay stores one tree token for a block, so that the hit ratios are
those of the blocks and a replay is as short as the trace is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Sequence


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        arrival_s: arrival in seconds since the trace began.
        blocks: ids of the prompt's blocks, root first. Two requests share a
            block exactly if they share its id and all ids before it.
        output_blocks: ids of the full blocks that the answer adds behind the
            prompt, where the source knows them; they are inserted when the
            request finishes and are never counted as hits or misses of it.
        output_tokens: length of the answer in tokens.
        input_tokens: length of the prompt in tokens; 0 stands for full blocks.
        priority: scheduling priority, higher is kept longer by priority policies.
    """

    arrival_s: float
    blocks: tuple[int, ...]
    output_blocks: tuple[int, ...] = ()
    output_tokens: int = 0
    input_tokens: int = 0
    priority: int = 0

    def prompt_tokens(self, block_tokens: int) -> int:
        """Length of the prompt in tokens."""
        return self.input_tokens or len(self.blocks) * block_tokens

    @property
    def path(self) -> tuple[int, ...]:
        """All blocks that are in the cache when the request has finished."""
        return self.blocks + self.output_blocks


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival.

    Attributes:
        name: what the report calls it.
        block_tokens: tokens in a block.
        source: where it came from, for the result file (no paths).
    """

    name: str
    requests: Sequence[Request]
    block_tokens: int
    source: str = ""
    settings: dict[str, object] = field(default_factory=dict)

    def head(self, limit: int | None) -> Trace:
        """The trace cut to its first ``limit`` requests."""
        if limit is None or limit >= len(self.requests):
            return self
        return Trace(
            self.name,
            self.requests[:limit],
            self.block_tokens,
            self.source,
            {**self.settings, "limit": limit},
        )

    def footprint(self) -> int:
        """Distinct blocks that all requests together touch."""
        identity = BlockIdentity()
        return len({block for r in self.requests for block in identity.path(r.path)})

    def longest_path(self) -> int:
        """Blocks of the longest request, answer included."""
        return max((len(request.path) for request in self.requests), default=0)


class BlockIdentity:
    """Numbers blocks by their whole prefix, as a radix tree tells them apart.

    Trace formats give chained ids, where equal ids imply equal prefixes. A file
    that does not keep this rule would otherwise make the optimum, which works on
    ids, unreachable for the tree, which works on paths.
    """

    def __init__(self, page_size: int = 1):
        self._page_size = page_size
        self._known: dict[tuple[int, tuple[int, ...]], int] = {}

    def path(self, blocks: Sequence[int]) -> list[int]:
        """One number for each whole page of ``blocks``."""
        numbers = []
        parent = -1
        step = self._page_size
        for start in range(0, len(blocks) - step + 1, step):
            key = (parent, tuple(blocks[start : start + step]))
            parent = self._known.setdefault(key, len(self._known))
            numbers.append(parent)
        return numbers
