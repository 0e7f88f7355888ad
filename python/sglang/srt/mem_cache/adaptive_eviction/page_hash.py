# SPDX-License-Identifier: Apache-2.0
"""Names of pages that outlive the tree: a hash of everything up to their end.

Page ``i`` of a path has the hash ``base + sum((token_j + 1) * factor_j for j < end_i)``
modulo 2**64, with a random odd factor for each position (multilinear hashing: Lemire
and Kaser, 2014) and a ``base`` that names the namespace. Under EAGLE, where a unit
is a pair of tokens, the second token counts too, with a factor of its own. The sum
lets a path be hashed in a few numpy operations and continued from any page. It is
not meant to resist an adversary: a collision can only mislead an eviction, never
return wrong KV.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Optional

import numpy as np

from . import native

if TYPE_CHECKING:
    from sglang.srt.mem_cache.radix_cache import RadixKey

_ALL_BITS = (1 << 64) - 1
# Under EAGLE the factor of a pair's second token is that of its position times this.
_NEXT = np.uint64(0xC2B2AE3D27D4EB4F)
_factors = np.empty(0, np.uint64)


def _position_factors(end: int) -> np.ndarray:
    """Odd factors of the first ``end`` positions or more; kept, and grown by doubling.

    The outputs of splitmix64 (Steele, Lea and Flood, 2014), the same in every process.
    """
    global _factors
    if end > len(_factors):
        x = np.arange(1, max(end, 2 * len(_factors), 4096) + 1, dtype=np.uint64)
        x *= np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        _factors = (x ^ (x >> np.uint64(31))) | np.uint64(1)
    return _factors


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
    units = key.token_ids
    if native.kernels is not None and isinstance(units, array):
        out = np.empty(count // page_size, np.uint64)
        native.kernels.page_hashes(
            units, first_unit, page_size, bool(key.is_bigram), position, base, out
        )
        return out
    return _page_hashes(key, first_unit, count, position, base, page_size)


def _page_hashes(
    key: RadixKey, first_unit: int, count: int, position: int, base: int, page_size: int
) -> np.ndarray:
    """The same with numpy, for ``count`` units, a multiple of ``page_size``."""
    # The slice copies: an array whose buffer is exported could not grow in place.
    raw = key.token_ids[first_unit : first_unit + count + bool(key.is_bigram)]
    if isinstance(raw, array):
        tokens = np.frombuffer(raw, np.uint64)
    else:
        tokens = np.array(raw, np.int64).view(np.uint64)
    factors = _position_factors(position + count)[position : position + count]
    mixed = tokens[:count] * factors
    mixed += factors
    if key.is_bigram:
        mixed += tokens[1 : count + 1] * (factors * _NEXT)
    if page_size > 1:
        mixed = np.add.reduce(mixed.reshape(-1, page_size), axis=1, dtype=np.uint64)
    if base:  # in Python integers: a numpy scalar sum would warn of overflow
        mixed[0] = (int(mixed[0]) + base) & _ALL_BITS
    return np.add.accumulate(mixed, out=mixed)
