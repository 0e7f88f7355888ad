# SPDX-License-Identifier: Apache-2.0
"""A publisher's identity and the documented page hash, without a tree and without torch."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Sequence
from typing import Any

from sglang.srt.disaggregation.prefix_registry.history import Identity
from sglang.srt.disaggregation.prefix_registry.stream import Expected

# Seconds in which a registry is promised to equal the cache again; a machine that builds other
# things at the same time may take longer.
HEAL_S = 10.0 if os.environ.get("CI") else 2.0


def identity(page_size: int = 4, **other: Any) -> Identity:
    """A publisher's identity; ``expected`` fits it."""
    fields = {"model": "m", "dtype": "float32/auto", "unit": "token", "instance": "i", "rank": 0}
    return Identity(page_size=page_size, **{**fields, **other})


def expected(page_size: int = 4) -> Expected:
    """What a reader of ``identity`` expects."""
    return Expected("m", "float32/auto", page_size)


def page_digests(
    tokens: Sequence[int], page_size: int, extra_key: str | None, salt: str | None, bigram: bool
) -> list[bytes]:
    """Page hashes from their description in docs/prefix-registry.md, with hashlib only."""
    prior = b""
    if extra_key is not None or salt is not None:
        seed = hashlib.sha256(b"sglang-cache-namespace-v1")
        for part in (extra_key, salt):
            if part is None:
                seed.update(b"\0")
            else:
                raw = part.encode()
                seed.update(b"\1" + len(raw).to_bytes(8, "little") + raw)
        prior = seed.digest()
    units = list(itertools.pairwise(tokens)) if bigram else [(t,) for t in tokens]
    out = []
    for start in range(0, len(units) // page_size * page_size, page_size):
        words = [word for unit in units[start : start + page_size] for word in unit]
        prior = hashlib.sha256(
            prior + b"".join(word.to_bytes(4, "little") for word in words)
        ).digest()
        out.append(prior)
    return out
