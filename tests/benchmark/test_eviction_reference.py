# SPDX-License-Identifier: Apache-2.0
"""The reference policies do what their papers say where the outcome is known by hand."""

from __future__ import annotations

from typing import Any

import pytest

from eviction import policies
from eviction.driver import Replay
from eviction.reference.base import deep_size, relative_prefill_cost
from eviction.trace import Request
from eviction.workloads import workload


def tree_of(name: str, capacity: int) -> Replay:
    return Replay(policies.resolve([name], {})[0], capacity, block_tokens=512, page_size=1)


def serve(tree: Replay, *prompts: tuple[int, ...]) -> list[int]:
    return [tree.serve(Request(0.0, prompt)) for prompt in prompts]


def resident(tree: Replay, prompt: tuple[int, ...]) -> int:
    """Blocks of ``prompt`` in the tree, found without touching it."""
    core = tree.cache.tree_core
    from array import array

    from sglang.srt.mem_cache.radix_cache import RadixKey

    return core.match_full_device_prefix(RadixKey(array("q", prompt)))[0]


def test_gdsf_keeps_what_is_used_often_and_ages_it():
    tree = tree_of("gdsf", 4)
    serve(tree, (1,), (1,), (1,), (2,), (3,), (4,))
    serve(tree, (5,))
    # 1 was used three times, 2 once and longest ago.
    assert resident(tree, (1,)) == 1
    assert resident(tree, (2,)) == 0
    # Each victim raises the worth of newcomers, so 1 goes in the end without a use.
    serve(tree, *((n,) for n in range(10, 40)))
    assert resident(tree, (1,)) == 0


def test_gdsf_prefers_what_costs_more_to_compute():
    tree = tree_of("gdsf", 60)
    deep = tuple(range(50))
    serve(tree, deep, (*deep[:49], 99), (200,), (201,), (202,), (203,), (204,), (205,))
    serve(tree, (300,), (301,), (302,), (303,))
    # Equal frequency 1, but block 49 needs attention over 49 blocks before it.
    assert resident(tree, deep) == 50


def test_s3fifo_moves_what_was_used_twice_to_the_main_queue():
    tree = tree_of("s3fifo", 10)
    serve(tree, (1,), (1,), (1,), (2,))
    serve(tree, *((n,) for n in range(100, 130)))
    assert resident(tree, (1,)) == 1
    assert resident(tree, (2,)) == 0


def test_s3fifo_readmits_a_ghost_into_the_main_queue():
    tree = tree_of("s3fifo", 10)
    serve(tree, (1,), *((n,) for n in range(100, 112)))
    assert resident(tree, (1,)) == 0
    serve(tree, (1,))
    serve(tree, *((n,) for n in range(200, 220)))
    assert resident(tree, (1,)) == 1


def test_marconi_weighs_recency_and_compute():
    tree = tree_of("marconi", 60)
    deep = tuple(range(50))
    # (200,) is the most recent, the end of `deep` saves the most; (199,) has neither.
    serve(tree, (199,), deep, (200,), *((n,) for n in range(210, 218)))
    serve(tree, (300,))
    assert resident(tree, (199,)) == 0
    assert resident(tree, deep) == 50


def test_lhd_learns_that_one_class_is_never_used_again():
    tree = tree_of("lhd", 60)
    hot = [(n,) for n in range(20)]
    scan = 1000
    for _ in range(40):
        serve(tree, *hot)
        serve(tree, *((scan + n,) for n in range(45)))
        scan += 45
    # LRU would keep none of them: 45 scanned blocks and 20 hot ones exceed the pool.
    assert sum(resident(tree, block) for block in hot) >= 15
    lru = tree_of("lru@python", 60)
    for _ in range(5):
        serve(lru, *hot)
        serve(lru, *((scan + n,) for n in range(45)))
        scan += 45
    assert sum(resident(lru, block) for block in hot) < 16


@pytest.mark.parametrize("name", policies.REFERENCE)
def test_records_exist_for_exactly_the_resident_nodes(name):
    tree = tree_of(name, 150)
    tree.run(workload("shared-prefixes", 150))
    policy: Any = tree.cache.tree_core.eviction_strategy
    records = getattr(policy, "_records", None)
    if records is None:
        pytest.skip(f"{name} keeps no records")
    nodes = {node.id for node in tree.cache.tree_core._collect_all_nodes()}
    nodes.discard(tree.cache.tree_core.root_node.id)
    assert set(records) == nodes
    assert policy.state_bytes() > 0


def test_state_of_s3fifo_is_bounded_by_the_pool():
    tree = tree_of("s3fifo", 40)
    serve(tree, *((n,) for n in range(400)))
    small = tree.hooks.state_bytes(tree.cache)
    serve(tree, *((n,) for n in range(400, 4000)))
    assert tree.hooks.state_bytes(tree.cache) < 2 * small


def test_prefill_cost_grows_with_the_position():
    assert relative_prefill_cost(0, 0) == 1
    # Attention costs as much as all the rest at 6 times the model's width.
    assert relative_prefill_cost(6 * 4096, 6 * 4096) == 2
    assert relative_prefill_cost(0, 512) < relative_prefill_cost(512, 1024)


def test_deep_size_counts_shared_objects_once():
    shared = list(range(1000, 1100))
    assert deep_size([shared, shared]) < deep_size([shared, list(range(2000, 2100))])
