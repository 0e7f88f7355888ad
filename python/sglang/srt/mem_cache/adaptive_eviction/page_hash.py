# SPDX-License-Identifier: Apache-2.0
"""Names of pages that outlive the tree: a hash of everything up to their end.

Page ``i`` of a path has the hash ``base + sum(mix(unit_j, j) for j < end_i)``
modulo 2**64, where a unit is a token (or a pair of tokens under EAGLE) and
``base`` names the namespace. The sum form lets a path be hashed in a few numpy
operations and continued from any page. It is not meant to resist an adversary:
a collision can only mislead an eviction, never return wrong KV.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Optional

import numpy as np

if TYPE_CHECKING:
    from sglang.srt.mem_cache.radix_cache import RadixKey

_TOKEN = np.uint64(0x9E3779B97F4A7C15)
_NEXT = np.uint64(0xC2B2AE3D27D4EB4F)
_POSITION = np.uint64(0x165667B19E3779F9)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(32)
_ALL_BITS = (1 << 64) - 1

_terms = np.empty(0, np.uint64)


def _position_terms(count: int) -> np.ndarray:
    """The first ``count`` positions times a constant; kept, and grown by doubling."""
    global _terms
    if count > len(_terms):
        grown = max(count, 2 * len(_terms), 4096)
        _terms = np.arange(grown, dtype=np.uint64) * _POSITION
    return _terms[:count]


@lru_cache(maxsize=1024)
def namespace_base(extra_key: Optional[str], cache_salt: Optional[str]) -> int:
    """Start value of a namespace's chains; the same in every process."""
    if extra_key is None and not cache_salt:
        return 0
    # JSON-free framing: lengths keep ("a", "bc") and ("ab", "c") apart.
    parts = [b"-" if p is None else p.encode() for p in (extra_key, cache_salt)]
    framed = b"".join(len(p).to_bytes(8, "little") + p for p in parts)
    present = bytes([extra_key is not None, bool(cache_salt)])
    return int.from_bytes(blake2b(present + framed, digest_size=8).digest(), "little")


def page_hashes(
    key: RadixKey, first_unit: int, position: int, base: int, page_size: int
) -> np.ndarray:
    """Hashes of the whole pages of ``key`` from unit ``first_unit`` on.

    Args:
        key: the tokens; ``first_unit`` counts from the start of this key.
        position: position on the path of that unit.
        base: hash of the page before it, or the namespace's base.

    Returns:
        ``uint64[pages]``, one hash a page end.
    """
    count = (len(key) - first_unit) // page_size * page_size
    if count <= 0:
        return np.empty(0, np.uint64)
    # The slice copies: an array whose buffer is exported could not grow in place.
    raw = key.token_ids[first_unit : first_unit + count + bool(key.is_bigram)]
    if isinstance(raw, array):
        tokens = np.frombuffer(raw, np.uint64)
    else:
        tokens = np.array(raw, np.int64).view(np.uint64)
    mixed = tokens[:count] * _TOKEN
    mixed += _position_terms(position + count)[position:]
    if key.is_bigram:
        mixed += tokens[1 : count + 1] * _NEXT
    mixed ^= mixed >> _SHIFT
    mixed *= _MIX
    if page_size > 1:
        mixed = np.add.reduce(mixed.reshape(-1, page_size), axis=1, dtype=np.uint64)
    if base:  # in Python integers: a numpy scalar sum would warn of overflow
        mixed[0] = (int(mixed[0]) + base) & _ALL_BITS
    return np.add.accumulate(mixed, out=mixed)
