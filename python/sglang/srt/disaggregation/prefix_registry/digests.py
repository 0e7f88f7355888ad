# SPDX-License-Identifier: Apache-2.0
"""Upstream's page hashes: ``SHA256(digest before || token ids as u32)``, chained.

The first page of a namespace follows ``storage_namespace_seed``; without a namespace
it follows nothing. Equal to the ``hash_value`` of the tree's nodes.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import sys
from array import array
from functools import lru_cache
from typing import Any, Callable, Optional, Sequence

from sglang.srt.disaggregation.prefix_registry.wire import DIGEST_BYTES

logger = logging.getLogger(__name__)

# Pages hashed for the first look-up; each further step hashes twice as many, so a
# miss early in a long prompt costs little and a full hit few calls.
FIRST_PAGES = 32
_U32_MAX = 2**32 - 1


class _Bigrams:
    """What upstream's hash takes for a key of pairs; n tokens have n - 1."""

    is_bigram = True

    def __init__(self, tokens: array):
        self.token_ids = tokens

    def __len__(self) -> int:
        return max(0, len(self.token_ids) - 1)


def namespace_seed(extra_key: Optional[str], cache_salt: Optional[str]) -> bytes:
    """The 32 bytes before a namespace's first page; empty without a namespace."""
    from sglang.srt.mem_cache.utils import storage_namespace_seed

    return bytes.fromhex(storage_namespace_seed(extra_key, cache_salt) or "")


def hash_pages(
    tokens: array, page_size: int, prior: bytes = b"", *, bigram: bool = False
) -> bytes:
    """Digests of all whole pages of ``tokens``, one after the other.

    Args:
        tokens: token ids, typecode "q", at least 0 and below 2**63.
        page_size: units (tokens, or pairs of them) a page.
        prior: the digest or seed before the first page.
        bigram: hash pairs of neighbouring tokens.
    """
    units = max(0, len(tokens) - 1) if bigram else len(tokens)
    units -= units % page_size
    if not units:
        return b""
    return _implementation()(tokens[: units + bigram], page_size, prior, bigram)


def load() -> None:
    """Choose and load the implementation now, which may compile it, not when serving."""
    _implementation()


@lru_cache(maxsize=1)
def _implementation() -> Callable[[array, int, bytes, bool], bytes]:
    """Upstream's C++ where it loads, else hashlib, which takes several times as long."""
    try:
        from sglang.srt.mem_cache.cpp_utils.native_hash import (
            _load_native_hash_module,
        )

        _load_native_hash_module()
    except (ImportError, RuntimeError) as error:
        logger.warning("Prefix registry: hashing in Python (%s)", error)
        return hash_pages_in_python
    return _hash_pages_natively


def _hash_pages_natively(
    tokens: array, page_size: int, prior: bytes, bigram: bool
) -> bytes:
    from sglang.srt.mem_cache.cpp_utils.native_hash import get_native_hash

    key: Any = _Bigrams(tokens) if bigram else tokens
    return bytes.fromhex("".join(get_native_hash(key, prior or None, page_size)))


def hash_pages_in_python(
    tokens: array, page_size: int, prior: bytes, bigram: bool
) -> bytes:
    """The same with hashlib; ``tokens`` must be whole pages."""
    if bigram:
        units = array("q", (t for pair in itertools.pairwise(tokens) for t in pair))
        width = 2 * page_size
    else:
        units, width = tokens, page_size
    out = bytearray()
    for start in range(0, len(units), width):
        page = units[start : start + width]
        digest = hashlib.sha256(prior)
        if max(page) > _U32_MAX:
            # As upstream: an odd byte tells wide ids (multimodal) from narrow ones.
            digest.update(b"\xff" + _little_endian(page))
        else:
            digest.update(_little_endian(array("I", page)))
        prior = digest.digest()
        out += prior
    return bytes(out)


def _little_endian(words: array) -> bytes:
    if sys.byteorder == "big":
        words = words[:]
        words.byteswap()
    return words.tobytes()


class PageChain:
    """Digests of one prompt in one namespace, hashed as far as someone asks.

    Args:
        token_ids: the prompt.
        page_size: units a page.
        bigram: pages of pairs.
        extra_key, cache_salt: the namespace, as the tree's key has it.
    """

    def __init__(
        self,
        token_ids: Sequence[int],
        page_size: int,
        *,
        bigram: bool = False,
        extra_key: Optional[str] = None,
        cache_salt: Optional[str] = None,
    ):
        if not isinstance(token_ids, array) or token_ids.typecode != "q":
            token_ids = array("q", token_ids)
        self._tokens = token_ids
        self._page_size = page_size
        self._bigram = bigram
        units = len(token_ids) - 1 if bigram else len(token_ids)
        self.pages = max(0, units) // page_size
        self._prior = namespace_seed(extra_key, cache_salt)
        self._digests = b""

    def between(self, start: int, stop: int) -> bytes:
        """Digests of the pages ``start`` to ``stop``, as far as there are pages."""
        stop = min(stop, self.pages)
        known = len(self._digests) // DIGEST_BYTES
        if stop > known:
            first, end = known * self._page_size, stop * self._page_size
            new = hash_pages(
                self._tokens[first : end + self._bigram],
                self._page_size,
                self._prior,
                bigram=self._bigram,
            )
            self._prior = new[-DIGEST_BYTES:]
            self._digests += new
        return self._digests[start * DIGEST_BYTES : stop * DIGEST_BYTES]
