# SPDX-License-Identifier: Apache-2.0
"""What early sharing costs the scheduler: CPU time of one look and of one insertion.

The real tree, allocator and request-row table; requests carry only what those read.
"""

from __future__ import annotations

import time
from array import array
from types import SimpleNamespace
from typing import Any

from common import stats, table

LOOK_REQUESTS = 64
COLUMNS = [
    table.Column("core", "core", text=True),
    table.Column("length", "tokens of the request", table.number(0)),
    table.Column("interval", "interval", table.number(0)),
    table.Column("insert_us", "insertion (us)", table.number(0)),
    table.Column("token_us", "a token (us)", table.number(2)),
    table.Column("look_us", f"look at {LOOK_REQUESTS} requests (us)", table.number(1)),
]


class _Request:
    """Enough of a request for the tree and the sharer."""

    skip_radix_cache_insert = False
    beam_group = input_embeds = positional_embed_overrides = session = session_id = None
    to_finish = radix_sharing = cache_salt = extra_key = kv_rotation_base = lock = None
    is_retracted = False
    spec_verify_ct = priority = 0

    def __init__(self, prompt: int, tokens: int, kv: Any):
        self.rid = "cost"
        self.full_untruncated_fill_ids = array("q", range(tokens + 1))
        self.origin_input_ids = self.full_untruncated_fill_ids[:prompt]
        self.output_ids = self.full_untruncated_fill_ids[prompt:]
        self.kv = kv

    @property
    def seqlen(self) -> int:
        return len(self.full_untruncated_fill_ids)

    def owned_kv_len(self) -> int:
        return self.kv.kv_committed_len

    def refresh_fill_ids(self) -> None:
        """Ids are complete."""

    def finished(self) -> bool:
        return False


def _world(core: str, length: int, interval: int):
    import torch
    from sglang.srt.managers.schedule_batch import ReqKvInfo
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.mem_cache.spec_radix_sharing.metrics import SharingMetrics
    from sglang.srt.mem_cache.spec_radix_sharing.settings import SharingSettings
    from sglang.srt.mem_cache.spec_radix_sharing.sharer import RadixSharer

    from eviction.pool import make_cache

    cache = make_cache(capacity=length + 64, core=core)
    pool = ReqToTokenPool(1, length + 64, "cpu", enable_memory_saver=False)
    cache.req_to_token_pool = pool
    kv = ReqKvInfo(req_pool_idx=1, kv_committed_len=0, kv_allocated_len=length)
    pool.req_to_token[1, :length] = cache.token_to_kv_pool_allocator.alloc(length)
    req = _Request(length // 2, length, kv)
    settings = SharingSettings(interval, 1.0)
    sharer = RadixSharer(settings, cache, list, SharingMetrics())
    torch.set_num_threads(1)
    return req, sharer


def measure(core: str, length: int, interval: int, repeats: int) -> dict[str, Any]:
    """A request grows to ``length`` tokens; its last ``repeats`` insertions are timed."""
    req, sharer = _world(core, length, interval)
    mode = SimpleNamespace(is_decode=lambda: True)
    batch = SimpleNamespace(reqs=[req], forward_mode=mode)
    inserted = []
    for committed in range(length - repeats * interval, length + 1, interval):
        req.kv.kv_committed_len = committed
        began = time.thread_time_ns()
        sharer.on_result(batch)
        inserted.append(time.thread_time_ns() - began)
    insert_us = stats.median(inserted[1:]) / 1e3
    many = SimpleNamespace(reqs=[req] * LOOK_REQUESTS, forward_mode=mode)
    looks = []
    for _ in range(200):
        began = time.thread_time_ns()
        sharer.on_result(many)
        looks.append(time.thread_time_ns() - began)
    return {
        "part": "cost",
        "core": core,
        "length": length,
        "interval": interval,
        "insert_us": insert_us,
        "token_us": insert_us / interval,
        "look_us": stats.median(looks) / 1e3,
    }
