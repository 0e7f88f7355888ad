# SPDX-License-Identifier: Apache-2.0
"""Predicted readiness and the order of decode's queue."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from sglang.srt.disaggregation.prefix_registry.prealloc_order import PreallocOrder
from sglang.srt.disaggregation.prefix_registry.ready_model import (
    FORGET_AFTER_S,
    MOST_REQUESTS,
    ReadyModel,
)


class Clock:
    now = 10.0

    def __call__(self):
        return self.now


class Waiting:
    def __init__(self, name, ready, tokens=100):
        self.name, self.req = name, self
        self.predicted_ready_s, self.kv_here_s = ready, None
        self.origin_input_ids = range(tokens)


def names(queue):
    return "".join(waiting.name for waiting in queue)


def learned(clock, speed=1000.0):
    """A model that has seen ``speed`` tokens a second on instance a."""
    model = ReadyModel(max_wait_s=100.0, clock=clock)
    for i in range(60):
        model.predict(f"w{i}", "a", 1000)
        clock.now += 1000 / speed
        model.ready(f"w{i}")
    return model


def test_the_speed_is_learned():
    clock = Clock()
    model = learned(clock)
    assert model.tokens_per_s("a") == pytest.approx(1000)
    assert model.predict("x", "a", 500) == pytest.approx(clock.now + 0.5)


def test_requests_of_one_instance_queue_and_instances_do_not():
    clock = Clock()
    model = learned(clock)
    first = model.predict("x", "a", 1500)
    assert model.predict("y", "a", 1400) == pytest.approx(first + 1.4)
    assert model.predict("z", "b", 10_000) == pytest.approx(clock.now + 1)


def test_what_has_little_to_compute_is_ready_before_what_has_much():
    clock = Clock()
    model = learned(clock)
    assert model.predict("cold", "a", 2000) == pytest.approx(clock.now + 2)
    cached = model.predict("cached", "a", 100)
    assert cached == pytest.approx(clock.now + 0.1)
    assert model.predict("cold too", "a", 2000) == pytest.approx(clock.now + 4.1)


def test_equally_long_requests_keep_their_order_when_the_instance_gets_faster():
    clock = Clock()
    model = learned(clock, speed=10.0)
    first = model.predict("x", "a", 500)
    for _ in range(200):
        model.predict("quick", "a", 10)
        clock.now += 0.001
        model.ready("quick")
    assert model.tokens_per_s("a") > 1000
    assert model.predict("y", "a", 500) >= first
    model.forget("x")
    model.forget("y")
    assert model.predict("z", "a", 500) == pytest.approx(clock.now + 0.5, abs=0.5)


def test_backlog_is_corrected_by_what_comes_back():
    clock = Clock()
    model = learned(clock)
    model.predict("x", "a", 4000)
    model.predict("y", "a", 1000)
    clock.now += 4.0
    model.ready("x")
    assert model.predict("z", "a", 1000) == pytest.approx(clock.now + 2)
    model.forget("y")
    model.forget("z")
    assert not any(model._instances["a"].backlog)


def test_no_prediction_is_further_than_the_bound():
    clock = Clock()
    model = ReadyModel(max_wait_s=2.0, clock=clock)
    assert model.predict("x", "a", 10**9) == clock.now + 2.0


def test_requests_that_never_come_back_are_forgotten():
    model = ReadyModel(max_wait_s=1.0, clock=Clock())
    for i in range(MOST_REQUESTS + 10):
        model.predict(str(i), "a", 1)
    assert len(model._waiting) == MOST_REQUESTS
    assert sum(model._instances["a"].backlog) == MOST_REQUESTS


def test_requests_whose_end_nobody_told_are_forgotten():
    known = set()
    model = ReadyModel(max_wait_s=1.0, clock=Clock(), is_known=known.__contains__)
    known.add("waits")
    model.predict("waits", "a", 1000)
    for i in range(50):  # aborted while it waits, for example
        known.add(str(i))
        model.predict(str(i), "a", 100)
        known.remove(str(i))
    assert set(model._waiting) <= {"waits", "48", "49"}
    assert sum(model._instances["a"].backlog) <= 1200


def test_instances_that_nothing_waits_for_are_forgotten():
    clock = Clock()
    model = ReadyModel(max_wait_s=1.0, clock=clock)
    for i in range(5):
        model.predict(f"x{i}", f"instance{i}", 10)
    for i in range(4):
        model.forget(f"x{i}")
    clock.now += FORGET_AFTER_S + 1
    model.predict("y", "new", 10)
    assert set(model._instances) == {"instance4", "new"}


def test_a_first_token_told_late_is_counted_when_it_was_there():
    clock = Clock()
    model = ReadyModel(max_wait_s=100.0, clock=clock)
    model.predict("x", "a", 1000)
    clock.now += 60.0  # decoded meanwhile
    model.ready("x", at=clock.now - 59.0)
    assert model.tokens_per_s("a") == pytest.approx(1000)


def test_order_is_by_prediction_and_stable():
    queue = [Waiting("a", 3.0), Waiting("b", 1.0), Waiting("c", 3.0), Waiting("d", None)]
    PreallocOrder(lambda req: 0).sort(queue)
    assert names(queue) == "dbac"


def test_what_must_be_moved_counts_where_a_speed_is_given():
    held = {"a": 0, "b": 90}
    queue = [Waiting("a", 1.0), Waiting("b", 1.5)]
    PreallocOrder(lambda req: held[req.name], 100.0).sort(queue)
    assert names(queue) == "ba"  # a: 1.0 + 100/100, b: 1.5 + 10/100
    held["a"] = 100
    PreallocOrder(lambda req: held[req.name], 100.0).sort(queue)
    assert names(queue) == "ba", "the place is kept while it waits"
    slow, later = Waiting("s", 1.0), Waiting("l", 3.5)
    PreallocOrder(lambda req: 0, 0.01, max_wait_s=2.0).sort(both := [later, slow])
    assert names(both) == "sl", "a transfer counts as max_wait_s at most"


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 50)), min_size=1, max_size=40))
def test_nobody_is_overtaken_by_what_arrives_after_the_bound(requests):
    clock = Clock()
    model = ReadyModel(max_wait_s=2.0, clock=clock)
    queue = []
    for i, (pause, tokens) in enumerate(requests):
        clock.now += pause
        waiting = Waiting(str(i), model.predict(str(i), "a", int(tokens * 1000) + 1))
        waiting.arrival = clock.now
        queue.append(waiting)
        PreallocOrder(lambda req: 0).sort(queue)
        for place, later in enumerate(queue):
            for earlier in queue[place + 1 :]:
                assert later.arrival <= earlier.arrival + 2.0
