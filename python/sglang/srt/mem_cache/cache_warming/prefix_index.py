# SPDX-License-Identifier: Apache-2.0
"""Which token prefixes are warmed, or hinted: a radix tree without KV."""

from __future__ import annotations

from array import array
from typing import Any, Iterable, NamedTuple, Optional

import torch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey


class PrefixKey(NamedTuple):
    """Tokens in their cache namespace, as the KV tree keys them.

    Attributes:
        tokens: ``array('q')``.
        extra_key: the request's extra key with its LoRA id appended.
        cache_salt: the request's salt.
    """

    tokens: array
    extra_key: Optional[str] = None
    cache_salt: Optional[str] = None

    def upto(self, length: int) -> PrefixKey:
        """The first ``length`` tokens of it."""
        return self._replace(tokens=self.tokens[:length])

    def radix_key(self) -> RadixKey:
        """The same for the tree."""
        return RadixKey(self.tokens, self.extra_key, cache_salt=self.cache_salt)


class PrefixIndex:
    """A set of prefixes that counts shared tokens once.

    Args:
        page_size: lengths are cut to whole pages, as in the KV tree.
    """

    def __init__(self, page_size: int = 1):
        self._page_size = page_size
        self._tree = RadixCache.create_simulated(page_size=page_size)
        self._size = 0
        # Changes whenever the set does.
        self.version = 0

    @property
    def size(self) -> int:
        """Tokens held; a shared prefix counts once."""
        return self._size

    def add(self, key: PrefixKey) -> int:
        """Add a prefix; returns by how many tokens the size grew."""
        length = len(key.tokens) // self._page_size * self._page_size
        if length == 0:
            return 0
        result = self._tree.insert(
            InsertParams(
                key=key.upto(length).radix_key(),
                value=torch.empty(length, dtype=torch.bool),
            )
        )
        grown = length - result.prefix_len
        self._size += grown
        self.version += 1
        return grown

    def match(self, key: PrefixKey) -> int:
        """Length of the longest prefix of ``key`` that is held."""
        return self.find(key)[0]

    def find(self, key: PrefixKey) -> tuple[int, Any]:
        """As ``match``, with the tree node where it ends (for ``family``)."""
        result = self._tree.match_prefix(MatchPrefixParams(key=key.radix_key()))
        return result.device_prefix_len, result.last_device_node

    def family(self, node: Any) -> Optional[int]:
        """Identity of the top-level branch ``node`` stands on; None for the root.

        Branches split while keys are matched, so ask after the last ``find``.
        """
        if node is self._tree.root_node:
            return None
        while node.parent is not self._tree.root_node:
            node = node.parent
        return node.id

    def rebuild(self, keys: Iterable[PrefixKey]) -> None:
        """Hold exactly these prefixes."""
        self._tree.reset()
        self._size = 0
        self.version += 1
        for key in keys:
            self.add(key)
