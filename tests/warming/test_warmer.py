# SPDX-License-Identifier: Apache-2.0
"""The rules by which steps enter a scheduler, on a scheduler reduced to its queues."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang.srt.managers.io_struct import (
    AbortReq,
    CacheWarmingReqInput,
    FlushCacheReqInput,
    PauseGenerationReqInput,
)
from sglang.srt.mem_cache.cache_warming.lora_ids import LoraIds
from sglang.srt.mem_cache.cache_warming.request import WarmingReqInput, request_input
from sglang.srt.mem_cache.cache_warming.steps import PrefillStep
from sglang.srt.mem_cache.cache_warming.warmer import PATIENCE_PASSES, CacheWarmer
from warming_world import World, prompt


class Scheduler:
    """Queues and flags as the warmer reads them; launched requests run until told."""

    def __init__(self, tree_cache):
        self.tree_cache = tree_cache
        self.disaggregation_mode = SimpleNamespace(value="null")
        self.waiting_queue = []
        self.running = []
        self.chunked_req = None
        self.result_queue = []
        self.weight_updater = SimpleNamespace(_session=None, offload_tags=set())
        self.flush_wrapper = SimpleNamespace(_pending=None)
        self._engine_paused = False
        self.released = []
        self.warmer = None

    @property
    def running_batch(self):
        return SimpleNamespace(is_empty=lambda: not self.running)

    def is_fully_idle(self):
        return not self.waiting_queue and not self.running

    def collect_inflight_reqs(self):
        return set(self.running)

    def handle_generate_request(self, recv_req):
        assert self.warmer.owns(recv_req)
        req = Request(recv_req)
        self.warmer._req = req
        self.waiting_queue.append(req)

    def _release_aborted_request(self, req):
        self.released.append(req)


class Request:
    """A request, warming if made from a step."""

    def __init__(self, recv_req=None):
        self.recv_req = recv_req
        self.is_cache_warming = recv_req is not None
        self.started_at, self.ended_at = 1.0, 1.5


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, [prompt("a", 0, 40, pin_seconds=50)], chunk=16)


@pytest.fixture
def warmer(world):
    scheduler = Scheduler(world.cache)
    scheduler.warmer = CacheWarmer(
        scheduler, world.planner, None, world.metrics, LoraIds(None), serve_priority=False
    )
    scheduler.warmer._pins = world.pins
    return scheduler.warmer


def real():
    step = PrefillStep("x", 0, world_tokens(), None, None, None, None)
    return WarmingReqInput.__bases__[0](
        **{
            field: getattr(request_input(step, serve_priority=False, prefill_instance=False), field)
            for field in WarmingReqInput.__bases__[0].__struct_fields__
        }
    )


def world_tokens():
    from array import array

    return array("q", [1, 2, 3])


def polled(warmer, passes=20):
    """Idle passes until a step is offered."""
    for _ in range(passes):
        if steps := warmer.poll():
            return steps
        warmer.admit([], 0)
    raise AssertionError(f"no step in {passes} passes")


def launch(warmer):
    (step,) = polled(warmer)
    pending = [step]
    assert warmer.admit(pending, 1) == 1
    warmer.handle(step)
    return step


def run(warmer, world):
    """The launched request is batched, and ends with its KV in the tree."""
    scheduler = warmer._scheduler
    scheduler.running, scheduler.waiting_queue = scheduler.waiting_queue, []
    yield
    from sglang.srt.mem_cache.cache_warming.prefix_index import PrefixKey

    assert world.insert(PrefixKey(scheduler.running[0].recv_req.input_ids))
    scheduler.running = []


def test_a_step_is_offered_only_to_an_idle_engine(warmer):
    scheduler = warmer._scheduler
    polled(warmer)
    scheduler.running = [Request()]
    assert warmer.poll() == []
    scheduler.running = []
    for blocked in (
        {"_engine_paused": True},
        {"weight_updater": SimpleNamespace(_session=object(), offload_tags=set())},
        {"weight_updater": SimpleNamespace(_session=None, offload_tags={"kv_cache"})},
        {"flush_wrapper": SimpleNamespace(_pending=(None, 1.0))},
    ):
        before = {name: getattr(scheduler, name) for name in blocked}
        scheduler.__dict__.update(blocked)
        assert warmer.poll() == []
        assert not warmer.has_work()
        scheduler.__dict__.update(before)
    assert len(warmer.poll()) == 1
    assert warmer.has_work()


def test_a_step_gives_way_to_what_came_with_it(warmer):
    (step,) = polled(warmer)
    pending = [real(), step, FlushCacheReqInput()]
    assert warmer.admit(pending, 3) == 2
    assert [type(item).__name__ for item in pending] == [
        "TokenizedGenerateReqInput",
        "FlushCacheReqInput",
    ]
    assert warmer.poll() == [step]  # offered again


def test_a_queued_step_gives_way_to_a_real_request(warmer, world):
    launch(warmer)
    scheduler = warmer._scheduler
    (queued,) = scheduler.waiting_queue
    assert warmer.admit([real()], 1) == 1
    assert scheduler.waiting_queue == []
    assert scheduler.released == [queued]
    assert world.metrics.aborted.value == 1
    assert world.states() == {"a": "warming"}


@pytest.mark.parametrize("traffic", [False, True])
def test_real_work_during_a_step_does_not_change_the_size_of_steps(tmp_path, traffic):
    world = World(tmp_path, [prompt("a", 0, 200)], capacity=256, chunk=128, step_s=0.5)
    scheduler = Scheduler(world.cache)
    warmer = scheduler.warmer = CacheWarmer(
        scheduler, world.planner, None, world.metrics, LoraIds(None), serve_priority=False
    )
    size = world.planner.step_size
    before = size.tokens
    launch(warmer)
    running = run(warmer, world)
    next(running)
    scheduler.running[0].ended_at = 11.0  # ten seconds
    if traffic:
        assert warmer.admit([real()], 1) == 1
    with pytest.raises(StopIteration):
        next(running)
    warmer.admit([], 0)
    assert world.metrics.seconds.value == 10.0
    assert size.tokens == (before if traffic else before // 2)


def test_a_running_chunk_does_not_hold_real_requests_back(warmer, world):
    launch(warmer)
    running = run(warmer, world)
    next(running)
    assert warmer.admit([real(), AbortReq(rid="x")], 2) == 2


def test_a_queued_step_gives_way_to_input_that_needs_an_idle_engine(warmer):
    launch(warmer)
    assert warmer.admit([FlushCacheReqInput()], 1) == 1
    assert warmer._scheduler.waiting_queue == []


@pytest.mark.parametrize("control", [FlushCacheReqInput(), PauseGenerationReqInput(mode="retract")])
def test_input_that_needs_an_idle_engine_waits_for_the_chunk(warmer, world, control):
    launch(warmer)
    running = run(warmer, world)
    next(running)
    pending = [AbortReq(rid="x"), control, real()]
    assert warmer.admit(pending, 3) == 1
    assert len(pending) == 3
    next(running, None)
    assert warmer.admit(pending[1:], 2) == 2


def test_it_does_not_wait_where_real_requests_keep_the_engine_busy(warmer, world):
    launch(warmer)
    running = run(warmer, world)
    next(running)
    warmer._scheduler.running.append(Request())
    assert warmer.admit([FlushCacheReqInput()], 1) == 1


def test_the_endpoint_does_not_wait(warmer, world):
    launch(warmer)
    running = run(warmer, world)
    next(running)
    assert warmer.admit([CacheWarmingReqInput(action="list")], 1) == 1


def test_steps_follow_each_other_until_all_is_warm_and_pinned(warmer, world):
    for length in (16, 32, 40):
        assert len(launch(warmer).tokens) == length
        assert warmer.poll() == []  # one at a time
        for _ in run(warmer, world):
            assert warmer.poll() == []
    (pin,) = polled(warmer)
    warmer.handle(pin)
    assert warmer.has_pins
    for _ in range(10):
        assert warmer.poll() == []
        warmer.admit([], 0)
    assert not warmer.has_work()
    assert world.states() == {"a": "warm"}


def test_a_step_that_is_never_admitted_is_taken_back(warmer, world):
    launch(warmer)
    for _ in range(PATIENCE_PASSES - 1):
        assert warmer.poll() == []
    (withdraw,) = warmer.poll()
    warmer.handle(withdraw)
    assert warmer._scheduler.waiting_queue == []
    assert world.states() == {"a": "no_room"}
    for _ in range(10):
        assert warmer.poll() == []
    assert not warmer.has_work()


def test_pins_give_way_when_requests_wait_and_nothing_runs(warmer, world):
    for _ in range(3):
        launch(warmer)
        for _ in run(warmer, world):
            pass
    (pin,) = polled(warmer)
    warmer.handle(pin)
    scheduler = warmer._scheduler
    scheduler.waiting_queue = [Request()]
    scheduler.running = [Request()]
    warmer.on_idle()
    assert warmer.has_pins
    scheduler.running = []
    warmer.on_idle()
    assert not warmer.has_pins
    assert world.cache.protected_size() == 0
    scheduler.waiting_queue = []
    (again,) = polled(warmer)
    assert again == pin


def test_ranks_without_a_planner_follow(world):
    scheduler = Scheduler(world.cache)
    follower = CacheWarmer(
        scheduler, None, None, world.metrics, LoraIds(None), serve_priority=False
    )
    scheduler.warmer = follower
    assert follower.poll() == []
    assert not follower.has_work()
    world.planner.next_step()
    world.planner.next_step()
    step = world.planner.next_step()
    assert follower.admit([step], 1) == 1
    follower.handle(step)
    assert len(scheduler.waiting_queue) == 1
    assert follower.admit([real()], 1) == 1
    assert scheduler.waiting_queue == []
    assert follower.control(CacheWarmingReqInput(action="list")).success
