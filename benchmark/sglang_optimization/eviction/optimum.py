# SPDX-License-Identifier: Apache-2.0
"""The offline optimum: what an eviction policy that knows the future would hit.

With equal blocks a parent is used no later than its child, since every request
that uses the child uses the parent too. So Belady's rule (evict what is used
again last; L. A. Belady, IBM Systems Journal 5(2), 1966), with ties decided for
the deeper block, never removes a block before its descendants: it evicts leaves
only, as a radix cache must, and its hits are the exact upper bound for a cache
that has to hold the whole path of the request it serves.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from .trace import BlockIdentity, Trace

NEVER = 1 << 60


@dataclass(frozen=True)
class Bound:
    """Hits of the optimum, out of the prompts' blocks and tokens.

    It maximises blocks; the tokens are those of its block hits.
    """

    hit_blocks: int
    total_blocks: int
    hit_tokens: int
    total_tokens: int
    rejected: int

    @property
    def hit_ratio(self) -> float:
        """Hit blocks by prompt blocks."""
        return self.hit_blocks / self.total_blocks if self.total_blocks else 0.0

    @property
    def token_hit_ratio(self) -> float:
        """Hit tokens by prompt tokens."""
        return self.hit_tokens / self.total_tokens if self.total_tokens else 0.0


def optimum(trace: Trace, capacity: int, page_size: int = 1) -> Bound:
    """Replay ``trace`` with Belady's rule in a pool of ``capacity`` blocks.

    Follows the driver's protocol: a request hits the resident part of its prompt
    and then occupies its whole prompt, and its answer when it finishes; nothing of
    its path leaves meanwhile. A request whose path exceeds the pool is rejected:
    its prompt counts as missed and changes nothing.

    O(b log b) in the number b of blocks over all requests.
    """
    pages = capacity // page_size
    identity = BlockIdentity(page_size)
    prompts = [len(r.blocks) // page_size for r in trace.requests]
    paths = [identity.path(r.path) for r in trace.requests]
    next_uses = _next_uses(paths, prompts, pages)

    resident: dict[int, tuple[int, int]] = {}
    heap: list[tuple[int, int, int]] = []
    hits = hit_tokens = rejected = 0
    for request, path, prompt, uses in zip(trace.requests, paths, prompts, next_uses):
        if len(path) > pages:
            rejected += 1
            continue
        held = 0
        while held < len(path) and path[held] in resident:
            held += 1
        hit = min(held, prompt)
        hits += hit
        hit_tokens += min(
            hit * page_size * trace.block_tokens,
            request.prompt_tokens(trace.block_tokens),
        )
        _make_room(resident, heap, len(path) - held, pages, set(path[:held]))
        for depth, (block, use) in enumerate(zip(path, uses)):
            resident[block] = (use, depth)
            heapq.heappush(heap, (-use, -depth, block))
    return Bound(
        hits * page_size,
        sum(prompts) * page_size,
        hit_tokens,
        sum(r.prompt_tokens(trace.block_tokens) for r in trace.requests),
        rejected,
    )


def _next_uses(paths: list[list[int]], prompts: list[int], pages: int) -> list[list[int]]:
    """For each block of each path the index of the next request with a use for it.

    Only a prompt uses a block: an answer that regenerates a resident block gains
    nothing from it. A rejected request uses nothing.
    """
    upcoming: dict[int, int] = {}
    result: list[list[int]] = [[] for _ in paths]
    for index in range(len(paths) - 1, -1, -1):
        result[index] = [upcoming.get(block, NEVER) for block in paths[index]]
        if len(paths[index]) <= pages:
            for block in paths[index][: prompts[index]]:
                upcoming[block] = index
    return result


def _make_room(
    resident: dict[int, tuple[int, int]],
    heap: list[tuple[int, int, int]],
    needed: int,
    pages: int,
    locked: set[int],
) -> None:
    """Evict until ``needed`` pages are free. Stale heap entries are skipped."""
    shortfall = needed - (pages - len(resident))
    kept = []
    while shortfall > 0:
        entry = heapq.heappop(heap)
        negative_use, negative_depth, block = entry
        if resident.get(block) != (-negative_use, -negative_depth):
            continue
        if block in locked:
            kept.append(entry)
            continue
        del resident[block]
        shortfall -= 1
    for entry in kept:
        heapq.heappush(heap, entry)
