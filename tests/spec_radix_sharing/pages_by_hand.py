# SPDX-License-Identifier: Apache-2.0
"""Random operations on the real tree, requests and release paths, without a model.

    python pages_by_hand.py MODEL RESULT.json OPERATIONS

For each core, page size and kind of key: requests are admitted, decode with drafts behind
what they commit, are shared, retracted, finished and aborted in a pool that is too small.
A slot's content is the hash of the text it was computed for, so a row that points to the
wrong slot, or to one whose owner has changed, shows. Pages are counted one by one.
"""

from __future__ import annotations

import json
import os
import random
import sys
from array import array
from collections import Counter
from types import SimpleNamespace

CORES = ("rust", "python")
SHAPES = ((1, False), (4, False), (1, True), (4, True))  # page size, bigram keys
CAPACITY, ROWS, LONGEST, RESERVE = 256, 6, 120, 12


class Pages:
    """One cache, its requests and what every slot was computed for."""

    def __init__(self, core: str, page: int, bigrams: bool, seed: int):
        import torch
        from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
        from sglang.srt.mem_cache.spec_radix_sharing.metrics import SharingMetrics
        from sglang.srt.mem_cache.spec_radix_sharing.settings import SharingSettings
        from sglang.srt.mem_cache.spec_radix_sharing.sharer import RadixSharer

        from eviction.pool import make_cache

        self.torch, self.rng = torch, random.Random(seed)
        self.page, self.bigrams = page, bigrams
        self.cache = make_cache(capacity=CAPACITY, page_size=page, core=core, is_eagle=bigrams)
        pool = ReqToTokenPool(ROWS, LONGEST + 4 * RESERVE, "cpu", enable_memory_saver=False)
        self.cache.req_to_token_pool = self.pool = pool
        self.allocator = self.cache.token_to_kv_pool_allocator
        settings = SharingSettings(12, 1.0, page, int(bigrams))
        self.queue: list = []
        self.sharer = RadixSharer(
            settings, self.cache, lambda: self.queue, lambda: self.running, SharingMetrics()
        )
        self.cache.radix_sharer = self.sharer
        self.known_hashes: dict[str, list[int]] = {}
        self.content = [0] * (CAPACITY + page)
        self.running: list = []
        self.waiting: list = []
        self.texts: list = []
        self.done: Counter = Counter()
        self.count = 0

    # ---- operations

    def step(self):
        draw = self.rng.random()
        if draw < 0.25:
            self.admit()
        elif draw < 0.75 and self.running:
            self.decode()
        elif draw < 0.85 and self.running:
            self.retract(self.rng.choice(self.running))
        elif draw < 0.93 and self.running:
            self.end(self.rng.choice(self.running), "finish")
        elif draw < 0.98 and self.running:
            self.end(self.rng.choice(self.running), "abort")
        elif draw > 0.99 and self.running:
            self.sharer.on_weights_changed(self.running)
            self.done["weights"] += 1

    def admit(self):
        if len(self.running) == ROWS:
            return
        if self.waiting and self.rng.random() < 0.7:
            req = self.waiting.pop(0)
        else:
            req = self.request()
        if len(req.origin_input_ids) + len(req.output_ids) > LONGEST - 20:
            return
        req.init_next_round_input(self.cache)
        self.sharer.on_admitted(req, req.prefix_len)
        req.lock = self.cache.lock(req.last_node)
        self.check_prefix(req)
        known = len(req.full_untruncated_fill_ids)
        prefix = self.cache.prefix_device_indices(req).clone()
        if not self.grow_to(req, prefix, known):
            self.cache.unlock(req.lock)
            req.lock = None
            return
        req.is_retracted = False
        req.extend_end = known
        req.kv.kv_committed_len = known
        self.compute(req, req.prefix_len, known)
        self.running.append(req)
        self.done["admit"] += 1
        from sglang.srt.mem_cache.common import checkpoint_kv_cache

        checkpoint_kv_cache(req, self.cache)
        req.output_ids.append(self.next_token(req))

    def draw(self):
        """A prompt: new, or the beginning of a text there was."""
        if self.texts and self.rng.random() < 0.6:
            text = self.rng.choice(self.texts[-40:])
            return text[: self.rng.randint(1, len(text))]
        return [self.rng.randrange(3) for _ in range(self.rng.randint(1, 40))]

    def request(self, ids=None, key=None):
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        if ids is None:
            ids = self.draw()
            key = self.rng.choice((None, None, "tenant"))
        self.count += 1
        sampling = SamplingParams(max_new_tokens=10_000)
        return Req(f"{self.count}", "", array("q", ids), sampling, extra_key=key)

    def decode(self):
        """A round of all: each commits some of its drafts, then the result is processed.

        A round's batch may still be queued when the one before it is processed.
        """
        batch = [req for req in self.running if self.reserve(req)]
        for req in batch:
            if req not in self.running:
                continue  # retracted to make room for another
            self.scribble(req)
            accepted = self.rng.randint(1, 5)
            for _ in range(accepted):
                self.compute(req, req.kv.kv_committed_len, req.kv.kv_committed_len + 1)
                req.kv.kv_committed_len += 1
                req.output_ids.append(self.next_token(req))
            req.spec_verify_ct += 1
        batch = [req for req in batch if req in self.running]
        mode = SimpleNamespace(is_decode=lambda: True, is_mixed=lambda: False)
        processed = SimpleNamespace(reqs=batch, forward_mode=mode)
        flying = [req for req in batch if self.rng.random() < 0.5]
        self.queue = [SimpleNamespace(reqs=flying)]
        rows = {req.rid: self.row(req) for req in flying}
        self.sharer.on_result(processed)
        if batch and self.rng.random() < 0.3:
            self.arrive(self.rng.choice(batch))
        for req in flying:
            assert self.row(req) == rows[req.rid], f"{req.rid}: a row in flight was rewritten"
        self.queue = []
        self.done["round"] += 1
        for req in batch:
            self.texts.append(list(req.origin_input_ids) + list(req.output_ids))
            if req.seqlen > LONGEST:
                self.end(req, "finish")

    def arrive(self, parent):
        """A request that continues a running one; it is admitted later."""
        text = list(parent.origin_input_ids) + list(parent.output_ids)
        cut = self.rng.randint(max(1, len(text) - 20), len(text) - 1)
        req = self.request(text[:cut], parent.extra_key)
        self.sharer.on_queued(req)
        self.waiting.append(req)
        self.done["arrival"] += 1

    def retract(self, req):
        from sglang.srt.managers.schedule_batch import release_req

        before = self.sharer.metrics.kept_tokens.value
        release_req(
            req=req,
            remaing_req_count=len(self.running) - 1,
            req_to_token_pool=self.pool,
            token_to_kv_pool_allocator=self.allocator,
            tree_cache=self.cache,
            hisparse_coordinator=None,
        )
        assert self.sharer.metrics.kept_tokens.value >= before
        self.running.remove(req)
        self.waiting.append(req)
        self.done["retract"] += 1

    def end(self, req, how):
        from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH
        from sglang.srt.mem_cache.common import release_kv_cache

        if how == "finish":
            req.finished_reason = FINISH_LENGTH(len(req.output_ids))
            # A stop within what the last round committed.
            req.finished_len = len(req.output_ids) - self.rng.randint(0, 1)
        else:
            req.finished_reason = FINISH_ABORT()
        release_kv_cache(req, self.cache, checkpoint=True)
        self.running.remove(req)
        self.done[how] += 1

    # ---- slots

    def grow_to(self, req, prefix, known):
        need = -(-known // self.page) * self.page - len(prefix)
        slots = self.take(need)
        if slots is None:
            return False
        assert self.pool.alloc([req]) is not None
        row = self.pool.req_to_token[req.kv.req_pool_idx]
        row[: len(prefix)] = prefix
        row[len(prefix) : len(prefix) + need] = slots
        req.kv.kv_allocated_len = len(prefix) + need
        return True

    def take(self, need):
        from sglang.srt.mem_cache.common import evict_from_tree_cache

        if need <= 0:
            return self.torch.empty(0, dtype=self.torch.int64)
        evict_from_tree_cache(self.cache, need)
        return self.allocator.alloc(need)

    def reserve(self, req):
        """Slots for drafts; retracts others as the scheduler would. False: not to be had."""
        while req in self.running:
            kv = req.kv
            need = -(-(kv.kv_committed_len + RESERVE) // self.page) * self.page
            need -= kv.kv_allocated_len
            slots = self.take(need)
            if slots is not None:
                row = self.pool.req_to_token[kv.req_pool_idx]
                row[kv.kv_allocated_len : kv.kv_allocated_len + max(0, need)] = slots
                kv.kv_allocated_len += max(0, need)
                return True
            self.retract(self.running[-1])
        return False

    def row(self, req):
        return self.pool.req_to_token[req.kv.req_pool_idx, : req.kv.kv_allocated_len].tolist()

    def scribble(self, req):
        """Drafts are written behind what is committed."""
        for slot in self.row(req)[req.kv.kv_committed_len :]:
            self.content[slot] = -1

    def compute(self, req, start, end):
        hashes = self.hashes(req)
        for position, slot in enumerate(self.row(req)[start:end], start):
            self.content[slot] = hashes[position]

    def hashes(self, req):
        """Hash of the text up to each token; only what is new is computed."""
        found = self.known_hashes.setdefault(req.rid, [])
        key = found[-1] if found else hash(req.extra_key)
        prompt = len(req.origin_input_ids)
        for position in range(len(found), req.seqlen):
            part = req.origin_input_ids if position < prompt else req.output_ids
            key = hash((key, part[position - (0 if position < prompt else prompt)]))
            found.append(key)
        return found

    def next_token(self, req):
        """Greedy: a function of the text."""
        return self.hashes(req)[-1] % 3

    # ---- what must hold

    def check_prefix(self, req):
        slots = self.cache.prefix_device_indices(req).tolist()
        hashes = self.hashes(req)
        wrong = [i for i, slot in enumerate(slots) if self.content[slot] != hashes[i]]
        # Under bigram keys the slot of the last pair may be any text's that goes on so.
        assert not wrong, f"{req.rid}: cached tokens {wrong[:5]} are of another text"

    def check(self):
        free = Counter(self.allocator.get_all_free_pages().tolist())
        tree = {slot // self.page for slot in self.cache.all_values_flatten().tolist()}
        owners = free + Counter(dict.fromkeys(tree, 1))
        for req in self.running:
            kv, row, hashes = req.kv, self.row(req), self.hashes(req)
            assert kv.cache_protected_len <= kv.kv_committed_len <= kv.kv_allocated_len
            assert {s // self.page for s in row[: kv.cache_protected_len]} <= tree
            owners += Counter({slot // self.page: 1 for slot in row[kv.cache_protected_len :]})
            for i in range(kv.kv_committed_len):
                assert self.content[row[i]] == hashes[i], f"{req.rid}: token {i} is lost"
        wrong = [n for n in range(1, CAPACITY // self.page + 1) if owners[n] != 1]
        assert not wrong, f"owners of pages: {[(n, owners[n]) for n in wrong[:5]]}"


def publish_arguments(model):
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import prepare_server_args

    flags = ["--speculative-algorithm", "NGRAM", "--max-total-tokens", "4096"]
    arguments = prepare_server_args(["--model-path", model, *flags])
    ranks = SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0)
    publish(arguments, role="scheduler", ranks=ranks)


def main(model, path, operations):
    publish_arguments(model)
    found = {}
    for core in CORES:
        for page, bigrams in SHAPES:
            pages = Pages(core, page, bigrams, seed=5)
            while sum(pages.done.values()) < operations:
                pages.step()
                pages.check()
            for req in list(pages.running):
                pages.end(req, "finish")
            pages.check()
            name = f"{core}, pages of {page}, {'bigrams' if bigrams else 'tokens'}"
            found[name] = {**pages.done, **pages.sharer.metrics.values()}
    with open(path, "w") as file:
        json.dump(found, file)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
