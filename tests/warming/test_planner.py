# SPDX-License-Identifier: Apache-2.0
"""What is warmed when, on the real tree of both cores."""

from __future__ import annotations

import pytest
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.cache_warming.prompt_file import PromptError, PromptSpec
from sglang.srt.mem_cache.cache_warming.steps import HintStep, PinStep, UnpinStep
from sglang.srt.mem_cache.cache_warming.tree import drop_prefix
from warming_world import CORES, World, prompt

both_cores = pytest.mark.parametrize("core", CORES)


@both_cores
@pytest.mark.parametrize("page_size", [1, 8])
def test_every_prompt_is_computed_in_chunks(tmp_path, core, page_size):
    world = World(
        tmp_path,
        [prompt("a", 0, 50), prompt("b", 1000, 35)],
        core=core,
        page_size=page_size,
        chunk=16,
    )
    world.idle()
    assert world.states() == {"a": "warm", "b": "warm"}
    assert world.cached(range(50)) == 50 // page_size * page_size
    assert world.cached(range(1000, 1035)) == 35 // page_size * page_size
    # Each step extends what the step before it left by one chunk at most.
    computed = 0
    for step in world.prefills():
        before = 0 if step.tokens[0] == 1000 and len(step.tokens) <= 16 else computed
        before = before if len(step.tokens) > before else 0
        assert len(step.tokens) - before <= 16
        computed = len(step.tokens)
    assert world.metrics.prompts.value == 2
    assert world.metrics.tokens.value == sum(length // page_size * page_size for length in (50, 35))
    assert world.metrics.seconds.value == 0.5 * len(world.prefills())


@both_cores
def test_what_requests_computed_is_not_computed_again(tmp_path, core):
    world = World(tmp_path, [prompt("a", 0, 48)], core=core, chunk=16)
    world.traffic(range(40))
    world.idle()
    assert [len(step.tokens) for step in world.prefills()] == [48]


def test_looking_does_not_refresh_recency(tmp_path):
    """Else watching would keep unused prompts from ever being evicted."""
    world = World(tmp_path, [prompt("a", 0, 32)], capacity=64, chunk=32)
    world.idle()
    world.traffic(range(500, 532))
    for _ in range(5):
        world.planner.on_traffic()
        world.idle()
    world.traffic(range(600, 632))  # evicts the older of the two
    assert world.cached(range(32)) == 0
    assert world.cached(range(500, 532)) == 32


@both_cores
def test_evicted_prompts_are_warmed_again_at_the_next_idle(tmp_path, core):
    world = World(tmp_path, [prompt("a", 0, 40)], core=core, capacity=64)
    world.idle()
    world.traffic(range(1000, 1060))
    assert world.cached(range(40)) < 40
    world.idle()
    assert world.cached(range(40)) == 40
    assert world.entry("a")["times_warmed"] == 2
    assert world.metrics.rewarmed.value == 1
    assert world.metrics.prompts.value == 1


@both_cores
def test_flushed_prompts_are_warmed_again(tmp_path, core):
    world = World(tmp_path, [prompt("a", 0, 40), prompt("b", 90, 20)], core=core)
    world.idle()
    world.flush()
    assert world.states() == {"a": "evicted", "b": "evicted"}
    assert world.planner.index.size == 0
    world.idle()
    assert world.states() == {"a": "warm", "b": "warm"}
    assert world.cached(range(40)) == 40


def test_priorities_order_the_entries(tmp_path):
    prompts = [
        prompt("low", 0, 10, priority=-1),
        prompt("first", 100, 10, priority=5),
        prompt("second", 200, 10, priority=5),
        prompt("plain", 300, 10),
    ]
    world = World(tmp_path, prompts)
    world.idle()
    assert [step.name for step in world.prefills()] == ["first", "second", "plain", "low"]
    assert [step.priority for step in world.prefills()] == [5, 5, 0, -1]
    world = World(tmp_path, prompts, low_priority_first=True)
    world.idle()
    assert [step.name for step in world.prefills()] == ["low", "plain", "first", "second"]


def test_budget_counts_shared_prefixes_once(tmp_path):
    shared = list(range(30))
    prompts = [
        {"name": "a", "input_ids": shared + list(range(100, 110))},
        {"name": "b", "input_ids": shared + list(range(200, 210))},
        {"name": "c", "input_ids": list(range(300, 315))},
        {"name": "d", "input_ids": list(range(400, 408))},
    ]
    world = World(tmp_path, prompts, budget=60)
    world.idle()
    assert world.states() == {"a": "warm", "b": "warm", "c": "over_budget", "d": "warm"}
    assert world.planner.index.size == 58
    assert "15 more tokens" in world.entry("c")["message"]
    assert world.planner.remove("a")
    world.idle()
    assert world.states() == {"b": "warm", "c": "warm", "d": "over_budget"} or (
        world.planner.index.size <= 60
    )


@both_cores
def test_a_prompt_added_in_front_takes_the_budget_of_those_at_the_end(tmp_path, core):
    world = World(
        tmp_path,
        [prompt("a", 0, 30), prompt("b", 100, 20), prompt("c", 200, 10, pin_seconds=99)],
        core=core,
        budget=60,
    )
    world.idle()
    assert set(world.states().values()) == {"warm"}
    world.planner.add([PromptSpec(**prompt("d", 300, 25, priority=5))])
    world.idle()
    # c alone would not have made enough room.
    assert world.states() == {"d": "warm", "a": "warm", "b": "over_budget", "c": "over_budget"}
    assert world.planner.index.size == 55
    assert not world.entry("c")["pinned"]
    assert world.cache.protected_size() == 0
    assert world.cached(range(100, 120)) == 20
    # One that all behind it together leave no room for takes nothing.
    world.planner.add([PromptSpec(**prompt("e", 400, 30, priority=1))])
    world.idle()
    assert world.states()["a"] == "over_budget" and world.states()["e"] == "warm"
    world.planner.add([PromptSpec(**prompt("f", 500, 40, priority=3))])
    world.idle()
    assert world.states()["f"] == "over_budget" and world.states()["e"] == "warm"
    for _ in range(3):
        world.planner.on_traffic()
        before = len(world.prefills())
        world.idle()
        assert len(world.prefills()) == before


@both_cores
def test_warming_evicts_others_up_to_the_budget_only(tmp_path, core):
    world = World(
        tmp_path,
        [prompt(f"p{i}", 10_000 + 100 * i, 20) for i in range(6)],
        core=core,
        capacity=200,
        budget=60,
    )
    for i in range(10):
        world.traffic(range(100 * i, 100 * i + 20))  # fills the pool
    world.idle()
    # Eviction takes whole leaves, here of 20 tokens.
    kept = sum(world.cached(range(100 * i, 100 * i + 20)) for i in range(10))
    assert kept == 200 - 60
    assert sorted(world.states().values()) == ["over_budget"] * 3 + ["warm"] * 3


@both_cores
def test_prompts_that_evict_each_other_do_not_loop(tmp_path, core):
    """The pool holds one of them at a time: idle must come to rest."""
    prompts = [prompt("a", 0, 50), prompt("b", 100, 50)]
    world = World(tmp_path, prompts, core=core, capacity=64, budget=64)
    world.idle()
    steps = len(world.prefills())
    world.planner.on_traffic()
    world.idle()
    assert len(world.prefills()) <= 2 * steps + 8


def test_a_pool_full_of_locked_kv_is_left_alone(tmp_path):
    world = World(tmp_path, [prompt("a", 0, 40)], capacity=64)
    world.traffic(range(500, 560))
    assert world.pins.pin("other", _key(range(500, 560)), None)
    world.idle()
    assert world.states() == {"a": "no_room"}
    assert world.cached(range(500, 560)) == 60
    world.pins.unpin("other")
    world.planner.on_traffic()
    world.idle()
    assert world.states() == {"a": "warm"}


@both_cores
def test_a_pin_lasts_its_time(tmp_path, core):
    world = World(tmp_path, [prompt("a", 0, 40, pin_seconds=30)], core=core, capacity=128)
    world.idle()
    assert world.entry("a")["pinned"]
    for i in range(10):
        world.traffic(range(1000 * (i + 1), 1000 * (i + 1) + 60))
        world.idle()
    assert world.cached(range(40)) == 40
    assert len(world.prefills()) == 3  # never computed again
    world.clock.now += 31
    assert world.planner.has_work()
    world.idle()
    assert isinstance(world.steps[-1], UnpinStep)
    assert world.cache.protected_size() == 0
    world.traffic(range(50_000, 50_120))
    assert world.cached(range(40)) < 40
    world.idle()
    # Warmed anew, so pinned anew.
    assert world.entry("a")["pinned"]
    assert world.cache.protected_size() == 40


@both_cores
def test_a_pin_locks_no_longer_prompt(tmp_path, core):
    world = World(tmp_path, [prompt("a", 0, 40, pin_seconds=30)], core=core)
    world.traffic(range(100))
    world.idle()
    assert world.entry("a")["pinned"]
    assert world.cache.protected_size() == 40


@both_cores
def test_a_flush_forgets_pins_instead_of_releasing_them(tmp_path, core):
    world = World(tmp_path, [prompt("a", 0, 40, pin_seconds=30)], core=core)
    world.idle()
    world.flush()
    assert not world.entry("a")["pinned"]
    world.clock.now += 31  # the old pin's time is over: nothing stale is released
    world.idle()
    assert world.entry("a")["pinned"]
    assert world.cache.protected_size() == 40
    world.clock.now += 31
    world.idle()
    assert world.cache.protected_size() == 0


def test_pins_that_gave_way_are_taken_again_while_their_time_lasts(tmp_path):
    world = World(tmp_path, [prompt("a", 0, 40, pin_seconds=30)])
    world.idle()
    world.planner.on_pins_released(world.pins.release())
    assert world.cache.protected_size() == 0
    world.idle()
    assert world.entry("a")["pinned"]
    world.planner.on_pins_released(world.pins.release())
    world.clock.now += 31
    world.idle()
    assert not world.entry("a")["pinned"]


@both_cores
def test_a_kept_cache_is_dropped_when_the_weights_change(tmp_path, core):
    world = World(tmp_path, [prompt("a", 0, 40, pin_seconds=99), prompt("b", 500, 20)], core=core)
    world.traffic(range(1000, 1030))
    world.idle()
    before = len(world.prefills())
    world.pins.release()
    world.planner.on_weights_changed()
    assert world.states() == {"a": "evicted", "b": "evicted"}
    world.idle()
    assert world.states() == {"a": "warm", "b": "warm"}
    # Both were computed in full again; what is not ours stayed.
    assert len(world.prefills()) == 2 * before
    assert world.cached(range(1000, 1030)) == 30


@both_cores
def test_what_a_session_holds_is_not_dropped(tmp_path, core):
    """A streaming session keeps its lock between turns, while the engine is idle."""
    world = World(tmp_path, [prompt("a", 0, 40), prompt("b", 500, 20)], core=core)
    world.idle()
    found = world.cache.match_prefix(MatchPrefixParams(key=_key(range(30)).radix_key()))
    lock = world.cache.lock(found.last_device_node)
    assert drop_prefix(world.cache, _key(range(40))) == 10
    assert world.cached(range(40)) == world.cache.protected_size() == 30
    world.planner.on_weights_changed()
    world.idle()
    assert world.cached(range(40)) == 40
    world.cache.unlock(lock)
    assert world.cache.protected_size() == 0
    assert drop_prefix(world.cache, _key(range(40))) == 40


@both_cores
@pytest.mark.parametrize("page_size", [1, 8])
def test_a_tree_of_token_pairs_is_pinned_and_dropped(tmp_path, core, page_size):
    """EAGLE's: n tokens are n - 1 pairs."""
    world = World(
        tmp_path,
        [prompt("a", 0, 41, pin_seconds=99), prompt("b", 500, 20)],
        core=core,
        page_size=page_size,
        is_eagle=True,
    )
    world.idle()
    assert world.states() == {"a": "warm", "b": "warm"}
    assert world.entry("a")["pinned"]
    assert world.cache.protected_size() == 40
    before = len(world.prefills())
    world.pins.release()
    world.planner.on_weights_changed()
    while world.planner._outbox:
        world.take(world.planner.next_step())
    assert world.cache.total_size()[0] == 0
    world.idle()
    assert world.states() == {"a": "warm", "b": "warm"}
    assert len(world.prefills()) == 2 * before


@both_cores
def test_a_reloaded_adapter_is_warmed_anew(tmp_path, core):
    world = World(
        tmp_path, [prompt("a", 0, 32, lora="ad", extra_key="t", pin_seconds=99)], core=core
    )
    world.idle()
    assert world.states() == {"a": "no_adapter"}
    assert "'ad' is not loaded" in world.entry("a")["message"]
    world.adapters["ad"] = "id1"
    world.planner.on_lora_changed("ad")
    world.idle()
    assert world.cached(range(32), extra_key="tid1") == 32
    assert world.cached(range(32), extra_key="t") == 0
    assert world.entry("a")["pinned"]
    world.pins.release("id1")
    world.adapters["ad"] = "id2"
    world.planner.on_lora_changed("ad")
    assert world.entry("a")["cached_tokens"] == 0
    world.idle()
    assert world.cached(range(32), extra_key="tid2") == 32
    assert world.cache.protected_size() == 32
    del world.adapters["ad"]
    world.pins.release("id2")
    world.planner.on_lora_changed("ad")
    world.idle()
    assert world.states() == {"a": "no_adapter"}
    assert world.cache.protected_size() == 0


def test_namespaces_are_kept_apart(tmp_path):
    world = World(
        tmp_path,
        [prompt("a", 0, 20, extra_key="x"), prompt("b", 0, 20, cache_salt="s")],
    )
    world.idle()
    assert world.cached(range(20)) == 0
    assert world.cached(range(20), extra_key="x") == 20
    assert world.cached(range(20), cache_salt="s") == 20
    assert world.planner.index.size == 40


def test_steps_that_never_lead_anywhere_end(tmp_path):
    """E.g. the server aborts them: given up until there was real traffic."""
    world = World(tmp_path, [prompt("a", 0, 20)])
    passes = 0
    while world.planner.has_work():
        passes += 1
        assert passes < 50
        if (step := world.planner.next_step()) is not None:
            world.planner.step_taken(step)
            world.planner.prefill_done(step, 0.1)  # nothing was cached
    assert world.states() == {"a": "failed"}
    assert world.metrics.aborted.value == 3
    world.planner.on_traffic()
    world.idle()
    assert world.states() == {"a": "warm"}


def test_a_dropped_step_is_offered_again(tmp_path):
    world = World(tmp_path, [prompt("a", 0, 20, pin_seconds=9)])
    world.planner.next_step()  # reads the file
    world.planner.next_step()  # tokenizes
    first = world.planner.next_step()
    assert world.planner.next_step() == first
    world.take(first)
    while not isinstance(step := world.planner.next_step(), PinStep):
        if step is not None:
            world.take(step)
    assert world.planner.next_step() == step
    assert not world.entry("a")["pinned"]


def test_a_file_spoilt_after_the_start_warms_nothing(tmp_path, caplog):
    world = World(tmp_path, [prompt("a", 0, 20)])
    assert world.planner.check_file() == 1
    (tmp_path / "prompts.json").write_text("{")
    world.idle()
    assert world.states() == {}
    assert "is not JSON" in caplog.text


@pytest.mark.parametrize(
    ("prompts", "settings", "expected"),
    [
        ([prompt("big", 0, 60)], {"max_prompt_tokens": 50}, "'big': has 60 tokens; .*at most 50"),
        ([prompt("big", 0, 60)], {"budget": 40}, "'big': needs 60 tokens .* than the 40"),
        ([prompt("small", 0, 7)], {"page_size": 8}, "'small': has 7 tokens, .*pages of 8"),
    ],
)
def test_prompts_that_cannot_be_warmed_are_named(tmp_path, prompts, settings, expected):
    world = World(tmp_path, prompts, **settings)
    with pytest.raises(PromptError, match=expected):
        world.planner.check_file()


def test_one_unit_of_work_a_pass(tmp_path):
    """A pass tokenizes or looks up one entry at most, so that it stays short."""
    world = World(tmp_path, [prompt(f"p{i}", 100 * i, 10) for i in range(8)])
    looked = []
    inner = world.planner._cached_tokens
    world.planner._cached_tokens = lambda key: looked.append(key) or inner(key)
    while world.planner.has_work():
        looked.clear()
        step = world.planner.next_step()
        assert len(looked) <= 1
        if step is not None:
            world.take(step)


def test_tree_mode_hints_and_computes_nothing(tmp_path):
    world = World(tmp_path, [prompt("a", 0, 20), prompt("b", 50, 9)], mode="tree", budget=1)
    world.idle()
    assert [type(step) for step in world.steps] == [HintStep, HintStep]
    assert world.states() == {"a": "warm", "b": "warm"}
    assert world.cached(range(20)) == 0
    world.traffic(range(100, 120))
    world.flush()
    world.idle()
    assert world.states() == {"a": "warm", "b": "warm"}
    assert world.entry("a")["cached_tokens"] == 0  # a hint is no cache
    assert len(world.steps) == 2  # hints do not depend on what is cached
    world.planner.remove("a")
    world.idle()
    assert world.steps[-1] == HintStep("a", None)


def _key(tokens):
    from array import array

    from sglang.srt.mem_cache.cache_warming.prefix_index import PrefixKey

    return PrefixKey(array("q", tokens))
