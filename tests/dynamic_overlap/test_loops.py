# SPDX-License-Identifier: Apache-2.0
"""In upstream's own loops, any sequence of decisions processes every result once, in order."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

pytest.importorskip(
    "sglang.srt.managers.dynamic_overlap", reason="topic dynamic-overlap is not in this build"
)
from overlap_loop_world import LOOPS, LoopWorld
from sglang.srt.managers.dynamic_overlap.config import parse_config
from sglang.srt.managers.dynamic_overlap.decision import OverlapDecisionMaker
from sglang.srt.managers.dynamic_overlap.metrics import OverlapMetrics
from sglang.srt.managers.dynamic_overlap.timing import HostClock, StepTimer

PASSES = 400


class Coin:
    """Drains with a given probability."""

    switches = 0

    def __init__(self, share, seed=0):
        self.share, self.random = share, random.Random(seed)
        self.proposals = {}
        self.drains = 0

    def decide(self, phase, size):
        drain = self.random.random() < self.share
        self.drains += drain
        return not drain, "coin"

    def apply(self, proposals):
        pass

    def wants_times(self, phase, size):
        return True


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("speculation", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("synchronous", [False, True])
def test_every_result_is_processed_once_and_in_order(kind, share, speculation, synchronous):
    if synchronous and speculation:
        pytest.skip("speculation launches alike everywhere")
    if kind == "prefill" and speculation:
        pytest.skip("the prefill loop does not ask about grammars")
    for seed in range(10):
        coin = Coin(share, seed)
        world = LoopWorld(
            kind, coin, PASSES, seed, speculation=speculation, synchronous=synchronous
        ).run()
        assert world.launched > PASSES / 2
        # What is left is in the queue: the loop ended between two passes.
        assert world.processed + len(world.result_queue) == world.launched
        assert world.most_queued <= 2
        if share:
            assert coin.drains > 20
        if share == 1.0 and kind != "prefill":
            assert world.most_queued == 1
            assert world.scheduled_with_all_processed > PASSES / 2


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("synchronous", [False, True])
def test_overlapping_always_is_upstreams_loop(kind, synchronous):
    without = LoopWorld(kind, None, PASSES, 3).run()
    always = LoopWorld(kind, Coin(0.0), PASSES, 3, synchronous=synchronous).run()
    assert always.log == without.log


@pytest.mark.parametrize("kind", ["null", "decode"])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_where_launching_is_computing_a_drained_pass_queues_nothing(kind, share):
    coin = Coin(share)
    metrics = OverlapMetrics(coin, None)
    world = LoopWorld(kind, coin, PASSES, 5, metrics=metrics, synchronous=True)
    alone, queued = [], []
    begins = world.dynamic_overlap.launch_begins

    def after_beginning(batch):
        begins(batch)
        (queued if world.enable_overlap else alone).append(batch.number)

    world.dynamic_overlap.launch_begins = after_beginning
    world.run()
    left = [batch.number for batch, _ in world.result_queue]
    assert len(alone) > PASSES / 4 and len(queued) > 20
    # One decision a result, wherever it is made; the last may not have been due.
    assert sum(metrics.counts.values()) in (world.launched, world.launched - 1)
    assert coin.drains + metrics.counts.get((True, "coin"), 0) == sum(metrics.counts.values())
    assert not set(left) & set(alone)
    if share == 1.0:
        assert set(metrics.counts) == {(False, "coin")}


def test_beams_keep_their_loop_where_launching_is_computing():
    coin = Coin(1.0)
    world = LoopWorld("null", coin, PASSES, 5, synchronous=True)
    world.beam_coordinator._num_live_groups = 1
    world.run()
    assert coin.drains == 0
    assert len(world.result_queue) <= 1 and world.most_queued == 2


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("synchronous", [False, True])
def test_draining_always_gives_the_order_of_the_loop_without_overlap(kind, synchronous):
    world = LoopWorld(kind, Coin(1.0), PASSES, 3, synchronous=synchronous)
    if kind == "prefill":
        # No chunks, which must overlap there.
        draw = world.get_next_batch_to_run

        def whole_prompts(*args, **more):
            plan = draw(*args, **more)
            world.chunked_req = None
            if plan.batch_to_run:
                plan.batch_to_run.reqs = [SimpleNamespace(inflight_middle_chunks=0)]
            return plan

        world.get_next_disagg_prefill_batch_to_run = whole_prompts
    log = [entry for entry in world.run().log if entry[0] != "idle"]
    for number in range(world.processed):
        assert log[2 * number : 2 * number + 2] == [("launch", number), ("process", number)]


def test_a_chunk_of_a_prefill_instance_is_not_sent_before_it_is_in_the_tree():
    counts = {}
    coin = Coin(1.0)
    metrics = OverlapMetrics(coin, None)
    world = LoopWorld("prefill", coin, PASSES, 5, metrics=metrics)
    process = world.process_batch_result

    def checked(batch, result):
        if any(req.inflight_middle_chunks for req in batch.reqs):
            counts["chunks"] = counts.get("chunks", 0) + 1
            assert not world.dynamic_overlap.drained
        process(batch, result)

    world.process_batch_result = checked
    world.run()
    assert counts["chunks"] > 20
    assert metrics.counts[True, "kv_send"] >= counts["chunks"] - 1
    assert metrics.counts[False, "coin"] > 20


def test_beams_keep_their_loop():
    coin = Coin(1.0)
    metrics = OverlapMetrics(coin, None)
    world = LoopWorld("null", coin, PASSES, 5, metrics=metrics)
    world.beam_coordinator._num_live_groups = 1
    world.run()
    assert coin.drains == 0
    assert set(metrics.counts) == {(True, "beam_search")}


@pytest.mark.parametrize("kind", ["null", "decode"])
def test_what_upstream_enforces_is_counted_by_its_reason(kind, monkeypatch):
    monkeypatch.setenv("SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP", "1")
    metrics = OverlapMetrics(Coin(0.0), None)
    world = LoopWorld(kind, Coin(0.0), PASSES, 5, metrics=metrics, speculation=True).run()
    counts = metrics.counts
    assert counts[False, "grammar"] > 20
    assert counts[False, "consecutive_prefill"] > 10
    assert counts[True, "coin"] > 20
    assert sum(counts.values()) <= world.launched


@pytest.mark.parametrize("kind", LOOPS)
def test_the_maker_decides_by_what_the_loop_measures(kind):
    """A launch on a CPU takes as long as its forward pass, so nothing is worth overlapping."""
    maker = OverlapDecisionMaker(
        parse_config({"min_dwell_steps": 0, "probe_interval_steps": 50, "probe_steps": 4})
    )
    metrics = OverlapMetrics(maker, None)
    timer = StepTimer(HostClock(), maker.observe)
    world = LoopWorld(kind, maker, 3000, 7, timer=timer, metrics=metrics)
    take = world.dynamic_overlap.take
    world.dynamic_overlap.take = lambda received: take(list(world.dynamic_overlap.poll()))
    world.run()
    counts = metrics.counts
    assert counts[False, "measured"] > 500
    assert counts[True, "heuristic"] > 0
    assert counts[True, "probe"] > 10
    assert (True, "measured") not in counts
    assert maker.switches >= 1
