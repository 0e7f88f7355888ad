# SPDX-License-Identifier: Apache-2.0
"""Tree locks of pinned prompts; every rank holds its own for its own tree."""

from __future__ import annotations

from typing import NamedTuple, Optional

from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams, TreeLock
from sglang.srt.mem_cache.cache_warming.prefix_index import PrefixKey
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache


class _Pin(NamedTuple):
    lock: Optional[TreeLock]
    lora_id: Optional[str]


class PinTable:
    """Locks by entry name.

    A lock belongs to the tree it was taken on: after a reset of the tree it must
    be forgotten, not released (a stale release raises KeyError).
    """

    def __init__(self, tree_cache: UnifiedRadixCache):
        self._tree_cache = tree_cache
        self._pins: dict[str, _Pin] = {}

    def __len__(self) -> int:
        return len(self._pins)

    def pin(self, name: str, key: PrefixKey, lora_id: Optional[str]) -> bool:
        """Lock ``key``; False, and no lock, unless all of it is on the device.

        Splits the tree's node where the key ends, so that no longer prompt below
        it is locked with it.
        """
        self.unpin(name)
        match = self._tree_cache.match_prefix(MatchPrefixParams(key=key.radix_key()))
        # Under EAGLE the tree counts pairs of tokens, one fewer.
        tail = int(self._tree_cache.tree_core.is_eagle)
        if match.device_prefix_len < len(key.tokens) - tail:
            return False
        lock = self._tree_cache.lock(match.last_device_node)
        self._pins[name] = _Pin(lock, lora_id)
        return True

    def unpin(self, name: str) -> None:
        """Release the entry's lock, if it has one."""
        if (pin := self._pins.pop(name, None)) is not None:
            self._tree_cache.unlock(pin.lock)

    def release(self, lora_id: Optional[str] = None) -> list[str]:
        """Release all locks, or those of one adapter; returns the entries' names."""
        names = [
            name
            for name, pin in self._pins.items()
            if lora_id is None or pin.lora_id == lora_id
        ]
        for name in names:
            self.unpin(name)
        return names

    def forget(self) -> None:
        """The tree was reset: the locks are gone with its nodes."""
        self._pins.clear()
