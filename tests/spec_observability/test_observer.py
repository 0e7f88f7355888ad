# SPDX-License-Identifier: Apache-2.0
"""The observer between scheduler and exports: order, ownership, ranks, what is left out."""

from __future__ import annotations

import pickle
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

drafts = pytest.importorskip("sglang.srt.speculative.observability.drafts")
from sglang.srt.speculative.observability import observer as observers  # noqa: E402
from sglang.srt.speculative.observability import stages  # noqa: E402
from sglang.srt.speculative.observability.totals import ServerTotals  # noqa: E402


class Recorder:
    """In place of the Prometheus metrics: the sums it was given."""

    def __init__(self):
        self.sums, self.stages, self.ratios, self.calls = ServerTotals(), [], [], 0

    def publish(self, totals):
        self.calls += 1
        self.sums.merge(totals)

    def publish_ratios(self, totals):
        self.ratios.append(totals.live.accepted / max(1, totals.live.drafted))

    def observe_stage(self, *stage):
        self.stages.append(stage)


class Req:
    def __init__(self, committed=10, allocated=40):
        self.time_stats = SimpleNamespace(spec_summary=None)
        self.kv = SimpleNamespace(kv_committed_len=committed, kv_allocated_len=allocated)
        self.is_retracted = self.ended = False

    def finished(self):
        return self.ended


class World:
    """A scheduler's worth of objects around one observer."""

    def __init__(self, recorder=True, width=4):
        self.recorder = Recorder() if recorder else None
        self.now, self.step, self.width = 0.0, 0, width
        self.clock = stages.StageClock(None, lambda: self.now)
        self.log = drafts.DraftLog()
        self.wall = 0.0
        self.observer = observers.SpecObserver(
            self.recorder, self.clock, self.log, lambda: self.wall
        )

    def launch(self, reqs, seconds=1.0):
        self.step += 1
        self.clock.begin(self.step, prefill=False, idle=False)
        self.clock.mark("verify")
        self.now += seconds
        self.clock.stop()
        return SimpleNamespace(reqs=list(reqs), forward_iter=self.step)

    def settle(self, batch, committed, correct=None):
        correct = [len(c) - 1 for c in committed] if correct is None else correct
        result = SimpleNamespace(
            speculative_num_draft_tokens=self.width,
            num_non_draft_tokens_per_req=1,
            num_correct_drafts_per_req_cpu=correct,
        )
        self.observer.on_result(batch, result, committed)

    def decode(self, reqs, committed, correct=None, ends=()):
        batch = self.launch(reqs)
        self.settle(batch, committed, correct)
        for req in ends:
            req.ended = True
        self.observer.on_processed(batch)


def test_sums_are_exported_before_a_finished_request_is_answered():
    world, req = World(), Req()
    world.decode([req], [[1, 2]])
    assert world.recorder.calls == 0
    world.decode([req], [[1, 2, 3]], ends=[req])
    assert world.recorder.calls == 1
    live = world.recorder.sums.live
    assert (live.drafted, live.accepted, live.request_steps) == (6, 3, 2)
    info = req.time_stats.spec_summary.meta_info()
    assert (info["drafted_tokens"], info["accepted_tokens"]) == (6, 3)
    assert info["stage_seconds"] == [{"stage": "verify", "clock": "host", "seconds": 2.0}]


def test_long_requests_are_exported_every_few_steps():
    world, req = World(), Req()
    for _ in range(observers.FLUSH_STEPS + 1):
        world.decode([req], [[1]])
    assert world.recorder.calls == 1
    world.observer.on_idle()
    assert world.recorder.sums.steps == observers.FLUSH_STEPS + 1
    world.observer.on_idle()  # nothing new
    assert world.recorder.calls == 2


def test_slow_steps_are_exported_every_second():
    world, req = World(), Req()
    world.decode([req], [[1]])
    assert world.recorder.calls == 0
    world.wall += observers.FLUSH_SECONDS
    world.decode([req], [[1]])
    assert world.recorder.sums.steps == 2
    world.decode([req], [[1]])
    assert world.recorder.calls == 1


def test_a_grammar_cuts_the_accepted_path():
    world, req = World(), Req()
    # Three drafts were right, the grammar ended after the first.
    world.decode([req], [[5]], correct=[3], ends=[req])
    live = world.recorder.sums.live
    assert (live.accepted, live.rejected, live.kv_overwritten) == (1, 2, 3)


def test_finished_and_retracted_requests_are_discarded():
    world = World()
    live, gone, retracted = Req(), Req(), Req()
    gone.ended = retracted.is_retracted = True
    world.decode([gone, live, retracted], [[1, 2], [1, 2, 3], [4]], ends=[live])
    sums = world.recorder.sums
    assert (sums.live.drafted, sums.live.accepted) == (3, 2)
    assert (sums.discarded, sums.discarded_request_steps, sums.discarded_kv) == (6, 2, 8)
    assert gone.time_stats.spec_summary is None
    assert live.time_stats.spec_summary.totals.accepted == 2


def test_retraction_keeps_a_requests_sums():
    world, req = World(), Req()
    world.decode([req], [[1, 2]])
    req.is_retracted = True
    world.decode([req], [[9, 9, 9]])
    req.is_retracted = False
    world.decode([req], [[3]], ends=[req])
    info = req.time_stats.spec_summary.meta_info()
    assert (info["verify_steps"], info["drafted_tokens"], info["accepted_tokens"]) == (2, 6, 1)
    assert world.recorder.sums.discarded == 3
    assert world.recorder.sums.live.drafted == 6


def test_under_overlap_times_go_to_the_steps_they_belong_to():
    world, first, second = World(), Req(), Req()
    flying = deque([world.launch([first], seconds=1.0)])
    flying.append(world.launch([first, second], seconds=10.0))
    world.settle(flying.popleft(), [[1]])
    flying.append(world.launch([second], seconds=100.0))
    world.settle(flying.popleft(), [[1], [1]])
    world.settle(flying.popleft(), [[1]])
    seconds = {
        req: req.time_stats.spec_summary.stage_seconds["verify", "host"] for req in (first, second)
    }
    assert seconds == {first: 11.0, second: 110.0}


def test_adaptive_width_counts_what_each_step_offered():
    world, req = World(width=4), Req()
    world.decode([req], [[1, 2, 3, 4]])
    world.width = 2
    world.decode([req], [[1]])
    world.width = 1  # drafting paused
    world.decode([req], [[1]], ends=[req])
    live = world.recorder.sums.live
    assert (live.drafted, live.accepted) == (4, 3)
    assert live.offered_at == [2, 1, 1]
    assert live.drafted_hist == [1, 1, 0, 1]


def test_a_lost_note_falls_back_to_the_results_width():
    world, req = World(width=5), Req()
    batch = world.launch([req])
    batch.forward_iter = None  # as from a pipeline stage without it
    world.settle(batch, [[1, 2]])
    world.observer.flush()
    assert world.recorder.sums.live.drafted == 4


def test_noted_trees_are_used():
    world, req = World(width=4), Req()
    batch = world.launch([req])
    mask = np.tril(np.ones((4, 4), np.int64))
    mask[3] = [1, 0, 0, 1]
    world.log.put_host(batch.forward_iter, np.array([9, 7, 8, 0]), mask.ravel(), 1)
    world.settle(batch, [[7, 5]])
    world.observer.flush()
    live = world.recorder.sums.live
    assert (live.drafted, live.accepted, live.drafted_at) == (2, 1, [1, 1])


def test_a_rank_that_does_not_report_sums_for_its_requests_only():
    world, req = World(recorder=False), Req()
    world.decode([req], [[1, 2]], ends=[req])
    world.observer.on_idle()
    assert req.time_stats.spec_summary.totals.accepted == 1


def test_a_server_that_only_prefills_keeps_no_backlog():
    world = World()
    for step in range(1000):
        world.clock.begin(step, prefill=True, idle=False)
        world.clock.mark("draft_extend")
        world.now += 1
        world.clock.stop()
        assert len(world.clock._done) <= stages.BACKLOG
    world.observer.on_idle()
    assert world.recorder.stages == [("draft_prefill", "host", 1.0)] * 1000


def test_ratios_look_back_on_the_latest_steps():
    world, req = World(), Req()
    for _ in range(observers.RATIO_STEPS):
        world.decode([req], [[1, 2, 3, 4]])
    for _ in range(observers.RATIO_STEPS):
        world.decode([req], [[1]])
    world.observer.on_idle()
    assert world.recorder.ratios == [1.0, 0.0]


def test_nothing_is_made_when_off(monkeypatch):
    none = SimpleNamespace(is_none=lambda: True)
    some = SimpleNamespace(is_none=lambda: False)
    for enabled, algorithm in ((False, some), (True, none)):
        reporter = SimpleNamespace(
            enable_metrics=enabled, scheduler=SimpleNamespace(spec_algorithm=algorithm)
        )
        assert observers.create_observer(reporter) is None
    assert stages.active() is None and drafts.active() is None


def test_only_one_rank_of_a_tensor_parallel_group_reports(monkeypatch):
    context = pytest.importorskip("sglang.srt.runtime_context")
    made = []
    monkeypatch.setattr(observers, "SpecMetrics", lambda *a: made.append(a))
    monkeypatch.setattr(stages, "install", lambda clock: None)
    monkeypatch.setattr(drafts, "install", lambda log: None)

    def create(tp_rank, pp_rank, everyone=False):
        parallel = SimpleNamespace(pp_rank=pp_rank, pp_size=2)
        monkeypatch.setattr(context, "get_parallel", lambda: parallel)
        made.clear()
        observer = observers.create_observer(
            SimpleNamespace(
                enable_metrics=True,
                is_stats_logging_rank=tp_rank == 0,
                current_scheduler_metrics_enabled=tp_rank == 0 or everyone,
                metrics_collector=SimpleNamespace(labels={"tp_rank": tp_rank}),
                scheduler=SimpleNamespace(
                    spec_algorithm=SimpleNamespace(is_none=lambda: False), device="cpu"
                ),
            )
        )
        return observer is not None, len(made)

    assert create(tp_rank=0, pp_rank=1) == (True, 1)
    assert create(tp_rank=0, pp_rank=0) == (True, 0)  # answers requests, does not draft
    assert create(tp_rank=1, pp_rank=1) == (False, 0)
    assert create(tp_rank=1, pp_rank=1, everyone=True) == (True, 1)


def test_sums_travel_to_meta_info_with_metrics_only():
    stats = pytest.importorskip("sglang.srt.observability.req_time_stats")
    world, req = World(), Req()
    for enabled in (True, False):
        req.time_stats = stats.SchedulerReqTimeStats()
        req.time_stats.enable_metrics = enabled
        req.ended = False
        world.decode([req], [[1, 2]], ends=[req])
        # To the detokenizer, and through a tokenizer worker.
        there = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(req.time_stats))))
        info = there.convert_to_output_meta_info()
        assert ("spec_observability" in info) is enabled
        if enabled:
            assert info["spec_observability"]["accepted_tokens"] == 1
    plain = pickle.loads(pickle.dumps(stats.SchedulerReqTimeStats()))
    assert "spec_observability" not in plain.convert_to_output_meta_info()
