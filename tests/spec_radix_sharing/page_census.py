# SPDX-License-Identifier: Apache-2.0
"""Who owns each page of the KV pool: the free list, the tree, or one request."""

from __future__ import annotations

from collections import Counter


def census(scheduler) -> list[str]:
    """What is wrong with the pages of the pool now; empty if each has one owner.

    Independent of the sizes that the tree and the allocator count: pages are collected one
    by one from the free list, the tree's nodes and the requests' rows.
    """
    allocator, page = scheduler.token_to_kv_pool_allocator, scheduler.page_size
    owners: dict[str, Counter] = {
        "free": Counter(allocator.get_all_free_pages().tolist()),
        # Every page of a node appears with each of its slots.
        "tree": Counter(
            slot // page for slot in scheduler.tree_cache.all_values_flatten().tolist()
        ),
    }
    wrong = [
        f"tree holds page {number} in {slots} slots of {page}"
        for number, slots in owners["tree"].items()
        if slots != page
    ]
    owners["tree"] = Counter(dict.fromkeys(owners["tree"], 1))
    tree = set(owners["tree"])
    rows = scheduler.req_to_token_pool.req_to_token
    for req in scheduler.invariant_checker._requests_owning_rows():
        kv = req.kv
        row = rows[kv.req_pool_idx, : kv.kv_allocated_len].tolist()
        if not kv.cache_protected_len <= kv.kv_committed_len <= kv.kv_allocated_len:
            wrong.append(f"{req.rid}: {kv}")
        shared = {slot // page for slot in row[: kv.cache_protected_len]}
        if shared - tree:
            wrong.append(f"{req.rid}: the tree lost pages {sorted(shared - tree)[:5]}")
        own = row[kv.cache_protected_len :]
        owners[req.rid] = Counter({slot // page: 1 for slot in own})
    total: Counter = Counter()
    for held in owners.values():
        total.update(held)
    pages = scheduler.max_total_num_tokens // page
    for number in range(1, pages + 1):
        if total[number] != 1:
            who = [name for name, held in owners.items() if held[number]]
            wrong.append(f"page {number} has {total[number]} owners: {who}")
    return wrong
