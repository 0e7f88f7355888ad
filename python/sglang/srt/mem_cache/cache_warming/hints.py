# SPDX-License-Identifier: Apache-2.0
"""Order of the waiting queue by hinted prefixes (``--cache-warming-mode tree``).

A hint says that a prefix is worth sharing, not that its KV exists. It lives in an
index of its own and is read here only, after upstream's policy has ordered the
queue: matching for KV never sees it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Optional

from sglang.srt.mem_cache.cache_warming.prefix_index import PrefixIndex, PrefixKey

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


class HintOrder:
    """The hinted prefixes, the same on every rank."""

    def __init__(self) -> None:
        self._keys: dict[str, PrefixKey] = {}
        self._index = PrefixIndex()
        # Changes whenever a hint does: who remembers lengths looks again.
        self.version = 0

    def set(self, name: str, key: Optional[PrefixKey]) -> None:
        """Hint ``key`` for the entry ``name``, or take its hint back."""
        self.version += 1
        if key is None:
            self._keys.pop(name, None)
            self._index.rebuild(self._keys.values())
        else:
            self._keys[name] = key
            self._index.add(key)

    def hinted_tokens(self, req: Req) -> int:
        """Length of the longest hinted prefix of the request's prompt.

        At most all but the last token, which is always computed, as for a match.
        """
        return self._find(req)[0]

    def _find(self, req: Req) -> tuple[int, Any]:
        tokens = req.origin_input_ids
        key = PrefixKey(tokens, req.extra_key, req.cache_salt)
        length, node = self._index.find(key)
        return min(length, max(0, len(tokens) - 1)), node

    def sort_longest_prefix(self, queue: list[Req], held_back: set[str]) -> None:
        """lpm: by the longer of cached and hinted prefix, longest first.

        Args:
            queue: sorted in place; ties keep their order.
            held_back: ids of requests that wait for one with the same prefix.
        """
        if not self._keys:
            return
        queue.sort(
            key=lambda req: (
                float("inf")
                if req.rid in held_back
                else -max(req.num_matched_prefix_tokens, self.hinted_tokens(req))
            )
        )

    def sort_families(self, queue: list[Req]) -> None:
        """dfs-weight: requests that share a hinted prefix stay together.

        Upstream's order comes first for requests whose cached prefix is at least
        as long as the hinted one; then the hinted families, largest first and
        within one the longest hint first; then the requests with neither.
        """
        if not self._keys:
            return
        found = [self._find(req) for req in queue]
        # Finding splits branches; a branch's identity holds once all are found.
        places = []
        for req, (length, node) in zip(queue, found, strict=True):
            hinted = length > req.num_matched_prefix_tokens
            family = self._index.family(node) if hinted else None
            places.append((family, length, req.num_matched_prefix_tokens))
        sizes = Counter(family for family, _, _ in places if family is not None)

        def key(position: int) -> tuple[int, int, int, int]:
            family, length, matched = places[position]
            if family is not None:
                return 1, -sizes[family], family, -length
            return (0, 0, 0, 0) if matched else (2, 0, 0, 0)

        order = sorted(range(len(queue)), key=key)
        queue[:] = [queue[position] for position in order]
