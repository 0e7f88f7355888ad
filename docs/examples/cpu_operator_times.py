# SPDX-License-Identifier: Apache-2.0
"""CPU time of the operators of speculation in PyTorch and in C++, a call.

Eight requests with 12 draft tokens and 1000 committed ones, vocabulary 49,152.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType

import torch
from sglang.srt.platforms import cpu_reference_spec_native as native
from sglang.srt.platforms import cpu_reference_spec_plain as plain

BATCH, WIDTH, LENGTH, VOCABULARY = 8, 12, 1000, 49_152


def microseconds(function: Callable[[], object]) -> float:
    """CPU time of a call: the best of five runs of 20 ms or one call."""
    best = float("inf")
    for _ in range(5):
        calls, began = 0, time.process_time()
        while calls == 0 or time.process_time() - began < 0.02:
            function()
            calls += 1
        best = min(best, (time.process_time() - began) / calls)
    return best * 1e6


def cases(ops: ModuleType) -> dict[str, Callable[[], object]]:
    """Each operator on the same input."""
    gen = torch.Generator().manual_seed(0)
    mask = torch.eye(WIDTH, dtype=torch.bool).repeat(BATCH, 1, 1)
    for request in range(BATCH):
        for node in range(1, WIDTH):
            parent = int(torch.randint(0, node, (1,), generator=gen))
            mask[request, node] |= mask[request, parent]
    seq_lens = torch.full((BATCH,), LENGTH)
    positions = torch.zeros(BATCH * WIDTH, dtype=torch.int64)
    links = plain.TreeLinks(*(torch.zeros(BATCH, WIDTH, dtype=torch.int64) for _ in range(3)))
    plain.links_from_mask(mask, seq_lens, positions=positions, out=links)
    drafts = torch.randint(0, 3, (BATCH, WIDTH), generator=gen)
    wanted = torch.randint(0, 3, (BATCH, WIDTH), generator=gen)
    index = torch.full((BATCH, WIDTH), -1, dtype=torch.int32)
    out = {
        "predicts": torch.zeros(BATCH * WIDTH, dtype=torch.int32),
        "accept_index": index,
        "accepted_drafts": torch.zeros(BATCH, dtype=torch.int32),
    }
    probs = torch.softmax(3 * torch.randn(BATCH, WIDTH, VOCABULARY, generator=gen), -1)
    rows = probs.view(-1, VOCABULARY)[: BATCH * 2]
    draws = torch.rand(BATCH, WIDTH, generator=gen)
    table = torch.randint(0, 99999, (BATCH, LENGTH + 64), generator=gen).int()
    places, ends = torch.arange(BATCH), seq_lens + WIDTH
    slots = torch.arange(BATCH * WIDTH)
    packed = torch.zeros(BATCH * WIDTH, dtype=torch.int64)
    counts = torch.full((BATCH,), 3, dtype=torch.int32)
    return {
        "links from a tree mask": lambda: ops.links_from_mask(
            mask, seq_lens, positions=positions, out=links
        ),
        "greedy verification": lambda: ops.follow_tree(links, drafts, wanted, **out),
        "sampled verification": lambda: ops.sample_tree(links, drafts, probs, draws, **out),
        "top-k of 16 rows": lambda: ops.top_k_renorm(rows, torch.full((len(rows),), 50)),
        "top-p of 16 rows": lambda: ops.top_p_renorm(rows, torch.full((len(rows),), 0.9)),
        "slots read": lambda: ops.extend_cache_locs(
            req_pool_indices=places, req_to_token=table, start_offset=seq_lens, end_offset=ends
        ),
        "slots written": lambda: ops.assign_req_to_token(table, places, seq_lens, ends, slots),
        "accepted slots packed": lambda: ops.accepted_cache_locs(index, slots, packed),
        "front slots packed": lambda: ops.front_cache_locs(counts, slots, packed),
        "bonus tokens": lambda: ops.bonus_tokens(slots, counts, packed[:BATCH], WIDTH),
        "slots of draft branches": lambda: ops.branch_slots(
            table, places, seq_lens.tolist(), topk=2, num_steps=3, page_size=4
        ),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    compiled = cases(native)
    for name, function in cases(plain).items():
        slow, fast = microseconds(function), microseconds(compiled[name])
        print(f"{name}: PyTorch {slow:.1f} us, C++ {fast:.1f} us, {slow / fast:.1f}x", flush=True)
