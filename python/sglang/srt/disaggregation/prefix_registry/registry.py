# SPDX-License-Identifier: Apache-2.0
"""What one instance (one of its data-parallel ranks) has cached, by page digests.

A hint: what it says is as old as the last message, and the cache may have changed since.
"""

from __future__ import annotations

from typing import Mapping, Optional, Sequence

from sglang.srt.disaggregation.prefix_registry.digests import FIRST_PAGES, PageChain
from sglang.srt.disaggregation.prefix_registry.table import make_table
from sglang.srt.disaggregation.prefix_registry.wire import (
    TIER_DEVICE,
    Adapters,
    Cleared,
    Operation,
    Removed,
    Stored,
)


class Prompt:
    """A prompt to estimate, with its digests shared among registries.

    Args:
        token_ids: the whole prompt.
        extra_key, cache_salt: as in the request.
        lora_name: name of its adapter; instances know it by ids of their own.
    """

    def __init__(
        self,
        token_ids: Sequence[int],
        *,
        extra_key: Optional[str] = None,
        cache_salt: Optional[str] = None,
        lora_name: Optional[str] = None,
    ):
        self.token_ids = token_ids
        self.extra_key = extra_key
        self.cache_salt = cache_salt
        self.lora_name = lora_name
        self._chains: dict[tuple[int, bool, Optional[str]], PageChain] = {}

    def chain(
        self, page_size: int, bigram: bool, adapter_id: Optional[str]
    ) -> PageChain:
        """The prompt's digests as an instance with these keys computes them."""
        key = (page_size, bigram, adapter_id)
        if key not in self._chains:
            extra_key = self.extra_key
            if adapter_id is not None:
                # As a request's constructor joins them.
                extra_key = (extra_key or "") + adapter_id
            self._chains[key] = PageChain(
                self.token_ids,
                page_size,
                bigram=bigram,
                extra_key=extra_key,
                cache_salt=self.cache_salt,
            )
        return self._chains[key]


class CacheHashRegistry:
    """Blocks (KV pages) of one KV cache. Calls from several threads are safe.

    A block is referenced once by each tier (device, host, ...) that holds it; telling
    a tier's hold again changes nothing, so replayed messages are harmless.

    Args:
        page_size: tokens a block.
        bigram: whether the instance keys its tree by pairs of tokens (EAGLE).
        max_blocks: bound of the memory; beyond it blocks are forgotten, which only
            makes estimates shorter.
    """

    def __init__(
        self, page_size: int, *, bigram: bool = False, max_blocks: int = 4_000_000
    ):
        self.page_size = page_size
        self.bigram = bigram
        self._table = make_table(max_blocks)
        self._adapters: Mapping[str, str] = {}

    def register_blocks(self, digests: bytes, tier: int = TIER_DEVICE) -> int:
        """``tier`` holds these digests, 32 bytes each. Returns how many are new."""
        return self._table.store(digests, tier)

    def remove_blocks(self, digests: bytes, tier: int = TIER_DEVICE) -> int:
        """``tier`` dropped them. Returns how many no tier holds any more."""
        return self._table.remove(digests, tier)

    def clear(self) -> None:
        """Nothing is cached."""
        self._table.clear()

    def apply(self, operations: Sequence[Operation]) -> None:
        """Apply a message's operations in order."""
        for operation in operations:
            if isinstance(operation, Stored):
                self._table.store(operation.digests, operation.tier)
            elif isinstance(operation, Removed):
                self._table.remove(operation.digests, operation.tier)
            elif isinstance(operation, Cleared):
                self._table.clear()
            elif isinstance(operation, Adapters):
                self._adapters = dict(operation.ids)

    def estimate_cached_prefix_length(
        self,
        token_ids: Sequence[int] | Prompt,
        *,
        extra_key: Optional[str] = None,
        cache_salt: Optional[str] = None,
        lora_name: Optional[str] = None,
    ) -> int:
        """Tokens of the longest prefix all of whose blocks are known.

        At most the prompt's whole blocks; an engine that must compute the last token
        can use one block less when the prompt ends with a block.

        Args:
            token_ids: the prompt, or a ``Prompt`` to ask several registries with (the
                keywords are then part of it).
            extra_key, cache_salt: namespace, as in the request.
            lora_name: adapter by name; 0 when the instance has not told its id.
        """
        prompt = token_ids
        if not isinstance(prompt, Prompt):
            prompt = Prompt(
                token_ids,
                extra_key=extra_key,
                cache_salt=cache_salt,
                lora_name=lora_name,
            )
        adapter_id = None
        if prompt.lora_name is not None:
            adapter_id = self._adapters.get(prompt.lora_name)
            if adapter_id is None:
                return 0
        chain = prompt.chain(self.page_size, self.bigram, adapter_id)
        start, stop = 0, FIRST_PAGES
        while True:
            digests = chain.between(start, stop)
            found = self._table.longest_prefix(digests)
            if start + found < stop or stop >= chain.pages:
                return (start + found) * self.page_size
            start, stop = stop, 2 * stop

    def references(self, digests: bytes) -> list[int]:
        """For each digest the number of tiers that hold it."""
        return [tiers.bit_count() for tiers in self._table.tiers(digests)]

    def dump(self) -> dict[bytes, int]:
        """Every digest with the bits of its tiers; for tests and snapshots."""
        digests, tiers = self._table.dump()
        return {digests[32 * i : 32 * (i + 1)]: tier for i, tier in enumerate(tiers)}

    @property
    def adapters(self) -> Mapping[str, str]:
        """Ids of LoRA adapters by name."""
        return self._adapters

    @property
    def num_blocks(self) -> int:
        """Blocks known."""
        return len(self._table)

    @property
    def nbytes(self) -> int:
        """Memory of the table."""
        return self._table.nbytes

    @property
    def evicted_blocks(self) -> int:
        """Blocks forgotten because of ``max_blocks``."""
        return self._table.evicted
