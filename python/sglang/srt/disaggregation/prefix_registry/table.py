# SPDX-License-Identifier: Apache-2.0
"""The table of digests: C++ where ``sgl-kernel-ext`` is installed, else Python.

Both have the interface of ``sgl_kernel_ext.prefix_table``. The Python one takes about
200 bytes a block instead of 43 and gives up the longest-known digest at its bound.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import OrderedDict
from typing import Any

from sglang.srt.disaggregation.prefix_registry.wire import DIGEST_BYTES

logger = logging.getLogger(__name__)


class PythonDigestTable:
    """See ``sgl_kernel_ext.prefix_table``."""

    def __init__(self, max_blocks: int):
        if not 1 <= max_blocks <= 2**31:
            raise ValueError(
                f"max_blocks must be between 1 and {2**31}, not {max_blocks}"
            )
        self._max_blocks = max_blocks
        self._tiers: OrderedDict[bytes, int] = OrderedDict()
        self._lock = threading.Lock()
        self.evicted = 0

    def store(self, digests: bytes, tier: int) -> int:
        known, fresh = self._tiers, 0
        _check_tier(tier)
        with self._lock:
            for digest in _each(digests):
                before = known.get(digest)
                if before is not None:
                    known[digest] = before | tier
                    continue
                if len(known) >= self._max_blocks:
                    known.popitem(last=False)
                    self.evicted += 1
                known[digest] = tier
                fresh += 1
        return fresh

    def remove(self, digests: bytes, tier: int) -> int:
        known, gone = self._tiers, 0
        _check_tier(tier)
        with self._lock:
            for digest in _each(digests):
                before = known.get(digest)
                if before is None:
                    continue
                left = before & ~tier
                if left:
                    known[digest] = left
                else:
                    del known[digest]
                    gone += 1
        return gone

    def longest_prefix(self, digests: bytes) -> int:
        known, count = self._tiers, 0
        with self._lock:
            for digest in _each(digests):
                if digest not in known:
                    break
                count += 1
        return count

    def tiers(self, digests: bytes) -> bytes:
        known = self._tiers
        with self._lock:
            return bytes(known.get(digest, 0) for digest in _each(digests))

    def clear(self) -> None:
        with self._lock:
            self._tiers.clear()

    def dump(self) -> tuple[bytes, bytes]:
        with self._lock:
            return b"".join(self._tiers), bytes(self._tiers.values())

    def __len__(self) -> int:
        return len(self._tiers)

    @property
    def nbytes(self) -> int:
        return sys.getsizeof(self._tiers) + len(self._tiers) * (
            sys.getsizeof(b"") + DIGEST_BYTES
        )


def _each(digests: bytes):
    if len(digests) % DIGEST_BYTES:
        raise ValueError(
            f"digests must be a multiple of {DIGEST_BYTES} bytes, not {len(digests)}"
        )
    return (
        digests[start : start + DIGEST_BYTES]
        for start in range(0, len(digests), DIGEST_BYTES)
    )


def _check_tier(tier: int) -> None:
    if not 1 <= tier <= 127:
        raise ValueError(f"tier must be between 1 and 127, not {tier}")


def make_table(max_blocks: int) -> Any:
    """A table for at most ``max_blocks`` digests."""
    return _table_class()(max_blocks)


def is_native() -> bool:
    """Whether tables are the C++ ones."""
    return _table_class() is not PythonDigestTable


def _table_class() -> type:
    try:
        from sgl_kernel_ext.prefix_table import DigestTable
    except ImportError as error:
        if error.name not in ("sgl_kernel_ext", "sgl_kernel_ext.prefix_table"):
            raise
        _warn_once()
        return PythonDigestTable
    return DigestTable


_warned = False


def _warn_once() -> None:
    global _warned
    if not _warned:
        _warned = True
        logger.warning(
            "Prefix registry: sgl-kernel-ext is not installed, so its tables are "
            "Python ones: right, but about five times the memory and a quarter of the "
            "look-ups. Install it with: pip install ./sgl-kernel-ext"
        )
