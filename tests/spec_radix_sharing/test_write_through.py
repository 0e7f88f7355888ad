# SPDX-License-Identifier: Apache-2.0
"""With HiCache's write-through, a retraction frees what it keeps at once."""

from __future__ import annotations

from array import array

import pytest
from sglang.srt.managers.schedule_batch import Req, release_req
from sglang.srt.mem_cache.common import checkpoint_kv_cache, evict_from_tree_cache
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.spec_radix_sharing.metrics import SharingMetrics
from sglang.srt.mem_cache.spec_radix_sharing.settings import SharingSettings
from sglang.srt.mem_cache.spec_radix_sharing.sharer import RadixSharer
from sglang.srt.mem_cache.spec_radix_sharing.spans import Sharing
from sglang.srt.runtime_context import get_context, publish
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs

from eviction.pool import make_cache

CAPACITY, PROMPT, OUTPUT = 64, 8, 40


class WriteThrough:
    """A tree whose backups are submitted and not acknowledged yet."""

    def __init__(self, core: str, page: int):
        self.cache = make_cache(capacity=CAPACITY, page_size=page, core=core)
        self.pool = ReqToTokenPool(1, CAPACITY, "cpu", enable_memory_saver=False)
        self.cache.req_to_token_pool = self.pool
        self.allocator = self.cache.token_to_kv_pool_allocator
        self.cache.tree_core.set_hicache_enabled()
        self.cache.write_through_threshold = 1
        self.cache._execute_and_commit_kv_backup = self._submit
        self.backups: list[tuple] = []
        settings = SharingSettings(interval=256, accept_threshold=1.0, page_size=page)
        sharer = RadixSharer(settings, self.cache, list, list, SharingMetrics())
        self.cache.radix_sharer = sharer

    def _submit(self, action) -> int:
        for node in action.node_ids:
            self.backups.append((node, self.cache.inc_lock_ref(node).to_dec_params()))
        return 0

    def acknowledge(self) -> None:
        for node, lock in self.backups:
            self.cache.dec_lock_ref(node, lock)
        self.backups.clear()

    def decoding_request(self) -> Req:
        """One whose prompt is inserted and backed up, and that generated all its output."""
        req = Req("r", "", array("q", range(PROMPT)), SamplingParams(max_new_tokens=1000))
        req.init_next_round_input(self.cache)
        req.lock = self.cache.lock(req.last_node)
        assert self.pool.alloc([req]) is not None
        slots = self.allocator.alloc(PROMPT + OUTPUT)
        self.pool.req_to_token[req.kv.req_pool_idx, : len(slots)] = slots
        req.kv.kv_allocated_len = len(slots)
        req.kv.kv_committed_len = req.extend_end = PROMPT
        checkpoint_kv_cache(req, self.cache)
        assert self.backups, "upstream backs up what a prefill inserts"
        self.acknowledge()
        req.radix_sharing = Sharing(due_at=0)
        req.output_ids.extend(range(100, 101 + OUTPUT))
        req.kv.kv_committed_len += OUTPUT
        return req

    def retract(self, req: Req) -> None:
        release_req(
            req=req,
            remaing_req_count=0,
            req_to_token_pool=self.pool,
            token_to_kv_pool_allocator=self.allocator,
            tree_cache=self.cache,
            hisparse_coordinator=None,
        )


@pytest.mark.parametrize("core", ["rust", "python"])
@pytest.mark.parametrize("page", [1, 4])
def test_what_a_retraction_keeps_can_be_evicted_before_it_is_backed_up(core, page):
    if not get_context().is_config_namespace_published("schedule"):
        publish(ServerArgs(model_path="dummy"), role="scheduler")
    world = WriteThrough(core, page)
    world.retract(world.decoding_request())
    kept = world.cache.radix_sharer.metrics.kept_tokens.value
    assert kept == OUTPUT
    assert world.allocator.available_size() == CAPACITY - PROMPT - OUTPUT
    evict_from_tree_cache(world.cache, CAPACITY)
    assert world.allocator.available_size() == CAPACITY
    assert not world.backups
