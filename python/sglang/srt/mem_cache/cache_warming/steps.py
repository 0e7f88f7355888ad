# SPDX-License-Identifier: Apache-2.0
"""Steps: what the deciding rank tells all ranks, through the input broadcast.

A step enters where requests enter (``Scheduler.ingest_requests``), so every rank of
a tensor or pipeline group takes the same one in the same pass, whatever local
clock or measurement made the deciding rank choose it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Optional

from sglang.srt.mem_cache.cache_warming.prefix_index import PrefixKey


@dataclass(frozen=True)
class WarmingStep:
    """One step for the entry ``name``."""

    name: str


@dataclass(frozen=True)
class PrefillStep(WarmingStep):
    """Compute the KV of ``tokens``, of which all but the last chunk are cached.

    ``extra_key`` is the entry's own, without the LoRA id that requests append.
    """

    serial: int
    tokens: array
    lora_id: Optional[str]
    extra_key: Optional[str]
    cache_salt: Optional[str]
    priority: Optional[int]


@dataclass(frozen=True)
class WithdrawStep(WarmingStep):
    """Take a prefill back that found no room and still waits."""


@dataclass(frozen=True)
class PinStep(WarmingStep):
    """Lock the prefix ``key`` against eviction."""

    key: PrefixKey
    lora_id: Optional[str]


@dataclass(frozen=True)
class UnpinStep(WarmingStep):
    """Release that lock."""


@dataclass(frozen=True)
class DropStep(WarmingStep):
    """Evict what the tree holds of ``key`` and nothing else needs."""

    key: PrefixKey


@dataclass(frozen=True)
class HintStep(WarmingStep):
    """Order the queue by this prefix from now on; None takes the hint back."""

    key: Optional[PrefixKey]
