# SPDX-License-Identifier: Apache-2.0
"""Device leaves demoted to the host, and host leaves evicted, with trimming.

The transfers are left out: host values are set on the nodes as a finished backup
sets them, and the tree's own eviction steps run.
"""

from __future__ import annotations

import pytest
import torch
from eviction_trees import cached, make_cache, serve
from sglang.srt.mem_cache.adaptive_eviction import find_policy
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

FULL = ComponentType.FULL
A, B = list(range(1, 9)), list(range(20, 28))


def host_tree(policy="adaptive", config=None, page_size=1):
    cache = make_cache(64, policy, config, page_size=page_size)
    cache.tree_core.set_hicache_enabled()
    reuse = find_policy(cache)
    for arrival, tokens in enumerate((A, B), 1):
        serve(cache, reuse, tokens, arrival=float(arrival))
    for node in list(cache.tree_core._node_arena.values()):
        if node is not cache.tree_core.root_node:
            slots = torch.arange(len(node.key), dtype=torch.int64)
            cache.tree_core.commit_backup(node.id, slots, {})
            cache.tree_core._update_duplicate_tracking(node)
    return cache


def evict_device(cache, tokens):
    """Device eviction as the cache drives it; no transfer is pending."""
    cache._evict_components({FULL: tokens}, tracker := {FULL: 0})
    return tracker[FULL]


def on_host(cache):
    """Host-resident pages by the first token of their path."""
    out: dict[int, int] = {}
    stack = [(cache.tree_core.root_node, None)]
    while stack:
        node, first = stack.pop()
        for child in node.children.values():
            start = first if first is not None else child.key.token_ids[0]
            data = child.component_data[FULL]
            if data.value is None and data.host_value is not None:
                out[start] = out.get(start, 0) + len(data.host_value)
            stack.append((child, start))
    return out


LEARNED = {"block_tokens": 1, "trim_tokens": 1}
LRU = {"index": True, "trim": True, "trim_tokens": 1}


@pytest.mark.parametrize(("policy", "config"), [("adaptive", LEARNED), ("lru", LRU)])
@pytest.mark.parametrize("page_size", [1, 2])
def test_demote_and_host_eviction_take_tails(policy, config, page_size):
    cache = host_tree(policy, config, page_size)
    core = cache.tree_core
    assert evict_device(cache, 4) == 4
    core.sanity_check([], [])
    assert (cached(cache, A), cached(cache, B)) == (4, 8)
    assert on_host(cache) == {1: 4}
    assert evict_device(cache, 6) == 6
    assert on_host(cache) == {1: 8, 20: 2}
    core.sanity_check([], [])
    assert cache.evict_host(2) == 2
    assert on_host(cache) == {1: 6, 20: 2}
    core.sanity_check([], [])
    assert cache.evict_host(100) == 8
    assert on_host(cache) == {}
    core.sanity_check([], [])


def test_demoted_pages_are_known_and_only_lost_ones_are_ghosts():
    cache = host_tree(config=LEARNED)
    policy = find_policy(cache)
    evict_device(cache, 16)
    assert policy.records.ghosts.pages == 0
    host_index = dict(policy.indexes)["host"]
    assert len(host_index) == 0  # indexed when needed
    cache.evict_host(3)
    assert policy.records.ghosts.pages == 3
    assert len(host_index) > 0
    report = policy.report()
    assert sum(report["evicted_tokens"].values()) == 16
    assert sum(report["evicted_host_tokens"].values()) == 3


def test_a_leaf_whose_eviction_failed_is_passed_over_in_that_walk():
    """As when a write-back finds no host space and the drop is declined."""
    cache = host_tree(config={**LEARNED, "trim": False})
    full = cache.components[FULL]
    full.evict_device_start(16)
    tracker = {FULL: 0}
    first = full._evict_device_next_node(tracker, {}, {}, [])
    second = full._evict_device_next_node(tracker, {}, {}, [])
    assert first is not None and second is not None and first != second
    assert full._evict_device_next_node(tracker, {}, {}, []) is None
    full.evict_device_end()
    # The next walk meets them again.
    full.evict_device_start(16)
    assert full._evict_device_next_node(tracker, {}, {}, []) == first
    full.evict_device_end()
