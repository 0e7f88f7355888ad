# SPDX-License-Identifier: Apache-2.0
"""Random requests on the real tree: whatever is evicted, the tree stays whole."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from eviction_trees import check
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tree_world import TreeWorld

CONFIGS: list[tuple[str, dict[str, Any] | None]] = [
    ("adaptive", {"block_tokens": 2}),
    ("adaptive", {"block_tokens": 2, "trim": False}),
    ("adaptive", {"block_tokens": 2, "age": "requests", "ghost_ratio": 0.5}),
    ("adaptive", {"mode": "weighted", "block_tokens": 2}),
    ("lru", {"trim": True, "trim_tokens": 1}),
]

# Few tokens and short prompts, so that prefixes are shared and split often.
PROMPT = st.lists(st.integers(0, 2), min_size=1, max_size=24)
NAMESPACE = st.sampled_from([None, None, "adapter-1", "salt:tenant"])
OPERATION = st.one_of(
    st.tuples(
        st.just("serve"),
        PROMPT,
        NAMESPACE,
        st.sampled_from([0, 0, 0, 1]),
        st.one_of(st.none(), st.integers(-3, 30)),
        st.integers(0, 600),
    ),
    st.tuples(st.just("start"), PROMPT, NAMESPACE),
    st.tuples(st.just("wait"), PROMPT, NAMESPACE),
    st.tuples(st.just("start waiting"), st.integers(0, 7)),
    st.tuples(st.just("finish"), st.integers(0, 7)),
    st.tuples(st.just("match"), PROMPT, NAMESPACE),
    st.tuples(st.just("evict"), st.integers(1, 20)),
    st.tuples(st.just("flush")),
)


def apply(world: TreeWorld, operation: tuple, clock: float) -> int | None:
    """One operation; returns what a caller can see of it."""
    name, *args = operation
    if name == "serve":
        prompt, namespace, priority, step, output = args
        return world.serve(
            prompt,
            namespace,
            priority=priority,
            # Some requests carry no arrival time, and clocks may step back.
            arrival=None if step is None else clock + step,
            output_tokens=output,
        )
    if name == "start" and len(world.held) < 3:
        return world.start(args[0], args[1], arrival=clock)
    if name == "wait":
        world.wait(args[0], args[1], arrival=clock)
    if name == "start waiting" and world.waiting and len(world.held) < 3:
        return world.start_waiting(args[0] % len(world.waiting))
    if name == "finish" and world.held:
        world.finish(args[0] % len(world.held))
    if name == "match":
        return world.cached(args[0], args[1])
    if name == "evict":
        return world.evict(args[0])
    if name == "flush":
        while world.held:
            world.finish()
        world.flush()
    return None


@pytest.mark.parametrize(("policy", "config"), CONFIGS)
@pytest.mark.parametrize(("page_size", "is_eagle"), [(1, False), (4, False), (1, True)])
@settings(max_examples=25, deadline=None)
@given(operations=st.lists(OPERATION, max_size=40))
def test_tree_and_pool_stay_whole(policy, config, page_size, is_eagle, operations):
    world = TreeWorld(policy, config, capacity=48, page_size=page_size, is_eagle=is_eagle)
    for number, operation in enumerate(operations):
        apply(world, operation, clock=10.0 * number)
        world.check()
        check(world.cache, world.policy)
    while world.held:
        world.finish()
    world.check()
    resident = world.capacity - world.allocator.available_size()
    assert world.evict(world.capacity) == resident
    assert world.allocator.available_size() == world.capacity


@pytest.mark.parametrize(("policy", "config"), CONFIGS)
@settings(max_examples=25, deadline=None)
@given(operations=st.lists(OPERATION, max_size=60))
def test_two_ranks_agree(policy, config, operations):
    """Same operations, clocks that have nothing to do with each other: same cache."""
    ranks = [TreeWorld(policy, config, capacity=40) for _ in range(2)]
    ticks = [itertools.count(0.0, 1e-6), itertools.count(5e8, 977.0)]
    prompts: set[tuple] = set()
    with pytest.MonkeyPatch.context() as patch:
        for number, operation in enumerate(operations):
            seen = []
            for world, tick in zip(ranks, ticks, strict=True):
                for clock in ("time", "monotonic", "perf_counter"):
                    patch.setattr(f"time.{clock}", tick.__next__)
                seen.append(apply(world, operation, clock=10.0 * number))
            patch.undo()
            assert seen[0] == seen[1]
            if operation[0] in ("serve", "start"):
                prompts.add((tuple(operation[1]), operation[2]))
            for prompt, namespace in sorted(prompts, key=repr):
                assert ranks[0].cached(prompt, namespace) == ranks[1].cached(prompt, namespace)


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo", "filo", "priority", "slru"])
@settings(max_examples=25, deadline=None)
@given(operations=st.lists(OPERATION, max_size=60))
def test_index_evicts_as_upstream_does(policy, operations):
    """The incremental index is faster, not another policy."""
    ours, upstream = TreeWorld(policy, {"index": True}), TreeWorld(policy)
    prompts: set[tuple] = set()
    for number, operation in enumerate(operations):
        seen = [apply(world, operation, clock=number) for world in (ours, upstream)]
        assert seen[0] == seen[1]
        if operation[0] in ("serve", "start"):
            prompts.add((tuple(operation[1]), operation[2]))
    for prompt, namespace in sorted(prompts, key=repr):
        assert ours.cached(prompt, namespace) == upstream.cached(prompt, namespace)
