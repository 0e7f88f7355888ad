# SPDX-License-Identifier: Apache-2.0
"""Penalizers are given the same tokens under every way of deciding."""

from __future__ import annotations

import random
from array import array
from types import SimpleNamespace

import pytest

pytest.importorskip(
    "sglang.srt.managers.dynamic_overlap", reason="topic dynamic-overlap is not in this build"
)
from overlap_loop_world import LoopWorld
from sglang.srt.managers.dynamic_overlap import penalties
from sglang.srt.managers.schedule_batch import ScheduleBatch

PASSES = 300


class Coin:
    switches = 0
    proposals: tuple = ()

    def __init__(self, share):
        self.share, self.random = share, random.Random(8)

    def decide(self, phase, size):
        return self.random.random() >= self.share, "coin"


class PenalizedWorld(LoopWorld):
    """The same few requests decode in turn; each result adds tokens to its batch's."""

    def __init__(self, kind, maker):
        super().__init__(kind, maker, PASSES, seed=2)
        self.counted = []
        self.reqs = [
            SimpleNamespace(
                name=name,
                inflight_middle_chunks=0,
                origin_input_ids=array("q", [1000 + name]),
                output_ids=array("q"),
            )
            for name in range(4)
        ]

    def get_next_batch_to_run(self, running_batch, last_batch=None, **more):
        plan = super().get_next_batch_to_run(running_batch, last_batch, **more)
        batch = plan.batch_to_run
        if batch:
            batch.reqs = [self.reqs[(batch.number // 3 + i) % 4] for i in range(2)]
            batch.device = "cpu"
            batch.sampling_info = SimpleNamespace(
                penalizer_orchestrator=SimpleNamespace(
                    is_required=True,
                    cumulate_output_tokens=lambda ids: self.counted.append(
                        (batch.number, ids.tolist())
                    ),
                )
            )
            # Upstream's method, with this feature's insertion.
            ScheduleBatch.cumulate_penalty_output_tokens(batch)
        return plan

    def process_batch_result(self, batch, result):
        super().process_batch_result(batch, result)
        for req in batch.reqs:
            # More than one under speculation.
            for n in range(1 + batch.number % 2):
                req.output_ids.append(10 * batch.number + n)


@pytest.mark.parametrize("kind", ["null", "decode"])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_penalizers_count_what_they_count_under_overlap(kind, share):
    plain = PenalizedWorld(kind, None).run()
    decided = PenalizedWorld(kind, Coin(share)).run()
    assert len(plain.counted) > PASSES / 2
    assert decided.counted == plain.counted
    assert decided.scheduled_with_all_processed > plain.scheduled_with_all_processed
    assert not penalties._before


def test_without_an_early_result_nothing_is_changed():
    tokens = [1, 2]
    assert penalties.last_tokens([object(), object()], tokens) is tokens


def test_the_tokens_would_differ_otherwise(monkeypatch):
    """The comparison above could fail."""
    plain = PenalizedWorld("null", None).run()
    monkeypatch.setattr(penalties, "last_tokens", lambda reqs, tokens: tokens)
    assert PenalizedWorld("null", Coin(0.5)).run().counted != plain.counted
