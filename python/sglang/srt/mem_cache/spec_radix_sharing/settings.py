# SPDX-License-Identifier: Apache-2.0
"""Flags of early sharing, and their check before anything is loaded.

Free of torch and of the scheduler: ``ServerArgs`` is checked with it.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

FLAG = "--enable-spec-radix-sharing"
INTERVAL_FLAG = "--spec-radix-sharing-interval"
THRESHOLD_FLAG = "--spec-radix-sharing-accept-threshold"
DEFAULT_INTERVAL = 256
DEFAULT_THRESHOLD = 1.0
MAX_INTERVAL = 1 << 20
MAX_THRESHOLD = 1024.0
# Intervals a request may wait for a natural point before the pipeline is drained.
DRAIN_AFTER_INTERVALS = 4


class SharingSettings(msgspec.Struct, frozen=True):
    """Resolved settings of one scheduler.

    Attributes:
        interval: accepted tokens between two insertions of one request.
        accept_threshold: mean output tokens a verification that a request needs.
        page_size: tokens of a KV page.
        uncached_tail: committed tokens the tree cannot key (1 for a tree keyed by
            bigrams, as under EAGLE).
        may_drain: whether this scheduler may process a queued result early.
    """

    interval: int
    accept_threshold: float
    page_size: int = 1
    uncached_tail: int = 0
    may_drain: bool = True

    def cacheable(self, num_tokens: int) -> int:
        """Tokens of ``num_tokens`` committed ones that the tree can hold."""
        usable = max(0, num_tokens - self.uncached_tail)
        return usable // self.page_size * self.page_size


def check_server_args(cfg: Any) -> None:
    """Start-up check of the flags on the resolved view of the server arguments.

    Raises:
        ValueError: a flag's value or a combination that cannot work. The text
            names the flag, what is wrong and what is allowed.
    """
    interval = cfg.spec_radix_sharing_interval
    threshold = cfg.spec_radix_sharing_accept_threshold
    if not cfg.enable_spec_radix_sharing:
        for flag, value, default in (
            (INTERVAL_FLAG, interval, DEFAULT_INTERVAL),
            (THRESHOLD_FLAG, threshold, DEFAULT_THRESHOLD),
        ):
            if value != default:
                raise ValueError(f"{flag} {value} has no effect without {FLAG}")
        return
    if not 1 <= interval <= MAX_INTERVAL:
        raise ValueError(
            f"{INTERVAL_FLAG} {interval} is not allowed; use 1 to {MAX_INTERVAL} tokens"
        )
    if not math.isfinite(threshold) or not 1.0 <= threshold <= MAX_THRESHOLD:
        raise ValueError(
            f"{THRESHOLD_FLAG} {threshold} is not allowed; use 1.0 (every request) to "
            f"{MAX_THRESHOLD:g} tokens a verification"
        )
    if threshold > 1.0 and cfg.speculative_algorithm is None:
        raise ValueError(
            f"{THRESHOLD_FLAG} {threshold} would share nothing: without "
            "--speculative-algorithm every step yields one token; use 1.0"
        )
    for name, set_, why in _conflicts(cfg):
        if set_:
            raise ValueError(f"{FLAG} cannot be combined with {name}: {why}")


def _conflicts(cfg: Any) -> list[tuple[str, bool, str]]:
    """(flag, whether it is set, why it cannot be combined)."""
    external = "its cache reads requests of its own accord; only the unified tree works"
    return [
        ("--disable-radix-cache", cfg.disable_radix_cache, "it has no prefix cache"),
        (
            "--strip-thinking-cache",
            cfg.strip_thinking_cache,
            "it keeps generated tokens out of the cache",
        ),
        (
            f"--disaggregation-mode {cfg.disaggregation_mode}",
            cfg.disaggregation_mode != "null",
            "a prefill instance generates nothing to share, and a decode instance keeps "
            "retracted KV in its own backup",
        ),
        (
            f"--pp-size {cfg.pp_size}",
            cfg.pp_size > 1,
            "several micro-batches are in flight at any time",
        ),
        (
            f"--dcp-size {cfg.dcp_size}",
            cfg.dcp_size > 1,
            "pages of the tree and of the pool differ in size",
        ),
        (
            "--enable-kv-cache-sharding",
            cfg.enable_kv_cache_sharding,
            "a request may have to keep pages of its own where the tree has others",
        ),
        ("--dllm-algorithm", cfg.dllm_algorithm is not None, "it commits by blocks"),
        ("--enable-pdmux", cfg.enable_pdmux, "it has event loops of its own"),
        (
            "--enable-hisparse",
            cfg.enable_hisparse,
            "it keeps KV of running requests on the host",
        ),
        ("--enable-lmcache", cfg.enable_lmcache, external),
        ("--enable-flexkv", cfg.enable_flexkv, external),
        (
            "--enable-unified-cache-external-linker",
            cfg.enable_unified_cache_external_linker,
            external,
        ),
    ]
