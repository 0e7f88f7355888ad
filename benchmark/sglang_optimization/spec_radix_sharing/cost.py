# SPDX-License-Identifier: Apache-2.0
"""What early sharing costs the scheduler: CPU time of looks and of insertions.

The real tree, allocator and request-row table; requests carry only what those read.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
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
    table.Column("flying_us", "insertion in flight (us)", table.number(0)),
    table.Column("match_us", "arrival that continues it (us)", table.number(0)),
    table.Column("look_us", f"look at {LOOK_REQUESTS} requests (us)", table.number(1)),
    table.Column("arrival_us", f"arrival beside {LOOK_REQUESTS} (us)", table.number(1)),
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
    queued: list[Any] = []
    running = [req]
    sharer = RadixSharer(settings, cache, lambda: queued, lambda: running, SharingMetrics())
    torch.set_num_threads(1)
    return req, sharer, queued, running


def _timed(call: Callable[[Any], None], argument: Any) -> int:
    began = time.thread_time_ns()
    call(argument)
    return time.thread_time_ns() - began


def measure(core: str, length: int, interval: int, repeats: int) -> dict[str, Any]:
    """A request grows to ``length`` tokens; its last insertions are timed.

    ``repeats`` of each kind: at a natural point, while a pass runs the request, and for an
    arriving request that continues it. Short lengths are raised so that these are its output.
    """
    length = max(length, 6 * repeats * interval)
    req, sharer, queued, running = _world(core, length, interval)
    mode = SimpleNamespace(is_decode=lambda: True)
    batch = SimpleNamespace(reqs=[req], forward_mode=mode)
    arriving = _Request(length, length, None)
    first = length - 3 * repeats * interval
    found: dict[str, list[int]] = {"insert": [], "flying": [], "match": []}
    # The first insertion takes the prompt along and is not counted.
    for number, committed in enumerate(range(first, length + 1, interval)):
        req.kv.kv_committed_len = committed
        kind = "match" if number > 2 * repeats else "flying" if number > repeats else "insert"
        queued[:] = [] if kind == "insert" else [batch]
        call, argument = sharer.on_result, batch
        if kind == "match":
            call, argument = sharer.on_queued, arriving
        took = _timed(call, argument)
        if req.kv.cache_protected_len != committed:
            raise RuntimeError(f"{kind}: {committed} tokens were to be inserted")
        if number:
            found[kind].append(took)
    queued.clear()
    many = SimpleNamespace(reqs=[req] * LOOK_REQUESTS, forward_mode=mode)
    looks = [_timed(sharer.on_result, many) for _ in range(200)]
    # The same prompt, and another first token of output than each of the running ones.
    req.kv.cache_protected_len = length // 2
    arriving.origin_input_ids = array("q", req.full_untruncated_fill_ids)
    arriving.origin_input_ids[length // 2] += 1
    running[:] = [req] * LOOK_REQUESTS
    arrivals = [_timed(sharer.on_queued, arriving) for _ in range(200)]
    insert_us = stats.median(found["insert"]) / 1e3
    return {
        "part": "cost",
        "core": core,
        "length": length,
        "interval": interval,
        "insert_us": insert_us,
        "token_us": insert_us / interval,
        "flying_us": stats.median(found["flying"]) / 1e3,
        "match_us": stats.median(found["match"]) / 1e3,
        "look_us": stats.median(looks) / 1e3,
        "arrival_us": stats.median(arrivals) / 1e3,
    }
