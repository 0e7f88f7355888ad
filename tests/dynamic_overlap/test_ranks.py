# SPDX-License-Identifier: Apache-2.0
"""Ranks whose clocks and loads differ decide alike, step by step."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import socket
from types import SimpleNamespace

import pytest

pytest.importorskip(
    "sglang.srt.managers.dynamic_overlap", reason="topic dynamic-overlap is not in this build"
)
from overlap_loop_world import LoopWorld
from sglang.srt.managers.dynamic_overlap import timing, updates
from sglang.srt.managers.dynamic_overlap.config import parse_config
from sglang.srt.managers.dynamic_overlap.decision import (
    DECODE,
    OverlapDecisionMaker,
    Proposal,
)

RANKS = 3
PASSES = 1500
SETTINGS = {
    "min_dwell_steps": 10,
    "probe_interval_steps": 60,
    "probe_steps": 5,
    "ema_weight": 0.5,
}


class SkewedClock:
    """Seconds that pass at another pace, with other noise, on every rank."""

    def __init__(self, rank):
        self.random = random.Random(1000 + rank)
        self.pace = 1 + 3 * rank
        self.now = 5000.0 * rank

    def __call__(self):
        self.now += self.pace * self.random.expovariate(1000)
        return self.now


class NoisyForward:
    """Forward times about as long as host times, so that the saving is in doubt."""

    on_stream = False

    def __init__(self, rank):
        self.random = random.Random(rank)

    def seconds(self, record):
        return record.launch + self.random.choice((0.0, 0.0, 0.0, 0.002))


def decisions(rank, share, measures):
    """One rank's decisions; ``share(updates)`` gives what all ranks receive in a pass."""
    timing.perf_counter = SkewedClock(rank)
    maker = OverlapDecisionMaker(parse_config(SETTINGS))
    taken = []
    decide = maker.decide

    def noted(phase, size):
        taken.append((phase, size, *decide(phase, size)))
        return taken[-1][2:]

    maker.decide = noted
    timer = timing.StepTimer(NoisyForward(rank), maker.observe) if measures else None
    world = LoopWorld("null", maker, PASSES, seed=1, timer=timer)
    overlap = world.dynamic_overlap
    take = overlap.take

    def exchanged(_):
        rest = take(share([*overlap.poll(), "a request"]))
        assert set(rest) == {"a request"}
        return rest

    overlap.take = exchanged
    world.run()
    return taken, maker.switches, world.log


def rank_process(rank, port, everyone_measures, results):
    """A rank with the broadcast that the request receiver uses, over gloo."""
    import torch.distributed as dist
    from sglang.srt.utils import broadcast_pyobj

    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", world_size=RANKS, rank=rank
    )

    def share(local):
        if everyone_measures:
            return local
        return broadcast_pyobj(local, rank, dist.group.WORLD, src=0)

    results.put((rank, decisions(rank, share, everyone_measures or rank == 0)))
    results.close()
    results.join_thread()
    dist.barrier()


def run_ranks(everyone_measures):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    ranks = [
        context.Process(target=rank_process, args=(r, port, everyone_measures, results))
        for r in range(RANKS)
    ]
    for process in ranks:
        process.start()
    found = dict(results.get(timeout=120) for _ in ranks)
    for process in ranks:
        process.join(timeout=60)
        assert process.exitcode == 0
    return [found[r] for r in range(RANKS)]


def test_ranks_with_diverging_clocks_decide_alike():
    first, *others = run_ranks(everyone_measures=False)
    taken, switches, log = first
    assert switches > 5
    assert {overlap for _, _, overlap, _ in taken} == {True, False}
    assert {reason for *_, reason in taken} == {"heuristic", "measured", "probe"}
    for other in others:
        assert other == first


def test_ranks_that_measured_for_themselves_would_not():
    """What the broadcast prevents: the test above could fail."""
    first, *others = run_ranks(everyone_measures=True)
    assert all(other[0] != first[0] for other in others)


def test_an_update_survives_the_broadcast():
    proposals = [Proposal(DECODE, 4, True), Proposal(DECODE, 2, False)]
    update = pickle.loads(pickle.dumps(updates.make_update(proposals)))
    request = object()
    assert updates.split_updates([request, update]) == (proposals, [request])


def test_a_lost_update_is_sent_again():
    """The receiver may skip a pass, and drops the rank's own input then."""
    from sglang.srt.managers.dynamic_overlap.controller import DynamicOverlap

    maker = OverlapDecisionMaker(parse_config({}))
    overlap = DynamicOverlap(SimpleNamespace(), maker, None, None)
    assert not overlap.poll()
    maker.proposals[DECODE, 4] = Proposal(DECODE, 4, False)
    assert overlap.poll() == overlap.poll()
    assert overlap.take([*overlap.poll(), "request"]) == ["request"]
    assert not overlap.poll()
    assert maker.decide(DECODE, 8) == (False, "measured")


def test_under_data_parallel_attention_updates_take_the_way_to_all_ranks():
    """A rank's own input goes to its group only; what is no work goes to all."""
    update = updates.make_update([Proposal(DECODE, 0, True)])
    abort, request = object(), object()
    assert updates.route_updates([request], [abort, update]) == ([request, update], [abort])
    assert updates.route_updates([request], [abort]) == ([request], [abort])
    # A rank that does not receive input has nothing to route.
    assert updates.route_updates(None, [update]) == (None, [update])


def test_under_data_parallel_attention_only_shared_facts_decide():
    """Ranks hold different batches; phase and size are then what they have synchronised."""
    from overlap_loop_world import Batch, Mode
    from sglang.srt.managers.dynamic_overlap.controller import DynamicOverlap

    asked = []
    for rows, mode in ((3, "decode"), (0, "idle"), (700, "extend")):
        scheduler = SimpleNamespace(
            require_mlp_sync=True,
            last_batch=True,
            result_queue=[(None, None)],
            beam_coordinator=SimpleNamespace(_num_live_groups=0),
        )
        maker = SimpleNamespace(proposals={})
        maker.decide = lambda phase, size: asked.append((phase, size)) or (True, "x")
        overlap = DynamicOverlap(scheduler, maker, None, None)
        overlap.launch_begins(
            Batch(
                forward_mode=Mode(mode),
                is_extend_in_batch=True,
                reqs=[None] * rows,
                extend_num_tokens=rows,
            )
        )
        overlap.before_schedule()
    assert len(asked) == 3
    assert len(set(asked)) == 1
