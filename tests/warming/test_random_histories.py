# SPDX-License-Identifier: Apache-2.0
"""Random histories of traffic, flushes, adapters, time and edits, on both cores."""

from __future__ import annotations

import tempfile
from array import array
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sglang.srt.mem_cache.cache_warming.prefix_index import PrefixKey
from sglang.srt.mem_cache.cache_warming.prompt_file import PromptSpec
from sglang.srt.mem_cache.cache_warming.steps import PrefillStep
from warming_world import CORES, World, prompt

BUDGET, CAPACITY, CHUNK = 48, 96, 16
LISTED = [
    prompt("a", 0, 30, pin_seconds=20),
    prompt("b", 0, 18),  # a prefix of a
    prompt("c", 100, 25, priority=1),
    prompt("d", 200, 20, lora="ad", pin_seconds=5),
    prompt("e", 300, 44, priority=-1),
]
OPERATIONS = st.one_of(
    st.tuples(st.just("traffic"), st.sampled_from([0, 100, 200, 400, 500]), st.integers(1, 70)),
    st.tuples(st.just("idle"), st.integers(1, 40)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("weights")),
    st.tuples(st.just("clock"), st.integers(1, 15)),
    st.tuples(st.just("load"), st.integers(0, 2)),
    st.tuples(st.just("unload")),
    st.tuples(st.just("remove"), st.sampled_from("abcde")),
    st.tuples(st.just("add"), st.sampled_from("abcde")),
    st.tuples(st.just("give way")),
)


def apply(world, operation):
    name, *values = operation
    planner = world.planner
    if name == "traffic":
        planner.on_traffic()
        start, length = values
        world.insert(PrefixKey(array("q", range(start, start + length))))
    elif name == "idle":
        for _ in range(values[0]):
            if planner.has_work() and (step := planner.next_step()) is not None:
                world.take(step)
    elif name == "flush":
        world.flush()
    elif name == "weights":
        world.pins.release()
        planner.on_weights_changed()
    elif name == "clock":
        world.clock.now += values[0]
    elif name in ("load", "unload"):
        if (old := world.adapters.pop("ad", None)) is not None:
            world.pins.release(old)
        if name == "load":
            world.adapters["ad"] = f"id{values[0]}"
        planner.on_lora_changed("ad")
    elif name == "remove":
        planner.remove(values[0])
    elif name == "add" and values[0] not in planner.names:
        planner.add([PromptSpec(**next(p for p in LISTED if p["name"] == values[0]))])
    elif name == "give way":
        planner.on_pins_released(world.pins.release())


def check(world):
    planner = world.planner
    assert planner.index.size <= BUDGET
    pinned = {p["name"] for p in planner.describe()["prompts"] if p["pinned"]}
    assert pinned <= set(world.pins._pins)
    # What is locked counts in full, shared prefixes once: never over the budget.
    assert world.cache.protected_size() <= BUDGET
    free = world.cache.token_to_kv_pool_allocator.available_size()
    assert free + world.cache.evictable_size() + world.cache.protected_size() == CAPACITY


# The adapter is loaded again under the id that it had.
@example(operations=[("load", 0), ("remove", "b"), ("idle", 40), ("load", 0)])
@pytest.mark.parametrize(("core", "is_eagle"), [*((core, False) for core in CORES), ("rust", True)])
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations=st.lists(OPERATIONS, max_size=25))
def test_histories(core, is_eagle, operations):
    with tempfile.TemporaryDirectory() as folder:
        world = World(
            Path(folder),
            LISTED,
            core=core,
            is_eagle=is_eagle,
            capacity=CAPACITY,
            chunk=CHUNK,
            budget=BUDGET,
        )
        for operation in operations:
            apply(world, operation)
            check(world)
        world.idle(400)
        check(world)
        # At rest all is warm that may be: look again after one more real request.
        world.planner.on_traffic()
        world.idle(400)
        check(world)
        for entry in world.planner._listing.listed:
            if entry.state == "warm":
                assert world.planner._cached_tokens(entry.key) >= len(entry.tokens) - is_eagle
            else:
                assert entry.state in ("over_budget", "no_adapter", "no_room", "evicted")
        for step in world.steps:
            if isinstance(step, PrefillStep):
                assert len(step.tokens) > 0
