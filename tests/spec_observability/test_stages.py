# SPDX-License-Identifier: Apache-2.0
"""Cutting steps into timed segments, by a host's clock and by device events."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest

stages = pytest.importorskip("sglang.srt.speculative.observability.stages")


class Time:
    """A host clock that moves when told."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Device:
    """A device that works off what was launched when told, as a stream does."""

    def __init__(self):
        self.queue, self.elapsed, self.made = [], 0.0, 0

    def launch(self, milliseconds):
        self.queue.append(milliseconds)

    def run(self, count=None):
        for _ in range(len(self.queue) if count is None else count):
            item = self.queue.pop(0)
            if isinstance(item, Event):
                item.at = self.elapsed
            else:
                self.elapsed += item

    def event(self):
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, device):
        self.device, self.at = device, None

    def record(self):
        self.at = None
        self.device.queue.append(self)

    def query(self):
        return self.at is not None

    def elapsed_time(self, end):
        assert self.query() and end.query(), "read before it was complete: a sync"
        return end.at - self.at

    def synchronize(self):
        raise AssertionError("a sync")


@pytest.fixture
def host():
    time = Time()
    clock = stages.StageClock(None, time)
    clock.begin(7, prefill=False, idle=False)
    return clock, time


def test_segments_are_consecutive(host):
    clock, time = host
    for stage, seconds in (("lookup", 1), ("tree_build", 2), ("verify", 4)):
        clock.mark(stage)
        time.now += seconds
    clock.stop()
    time.now += 100  # between stages
    clock.stop()
    assert clock.drain() == [
        ("lookup", "host", 1, 7),
        ("tree_build", "host", 2, 7),
        ("verify", "host", 4, 7),
    ]
    assert clock.drain() == []


def test_a_mark_inside_a_span_cuts_it(host):
    clock, time = host
    entered = []

    @contextmanager
    def inner():
        entered.append("in")
        yield
        entered.append("out")

    with clock.span("draft", inner()):
        time.now += 3
        clock.mark("tree_build")
        time.now += 1
    assert entered == ["in", "out"]
    assert [(t.stage, t.seconds) for t in clock.drain()] == [("draft", 3), ("tree_build", 1)]


def test_a_span_that_raises_ends(host):
    clock, time = host

    def step():
        with clock.span("draft", nullcontext()):
            time.now += 2
            raise RuntimeError

    with pytest.raises(RuntimeError):
        step()
    time.now += 50
    clock.mark("verify")
    time.now += 1
    clock.stop()
    assert [(t.stage, t.seconds) for t in clock.drain()] == [("draft", 2), ("verify", 1)]


def test_an_unended_segment_is_dropped_by_the_next_step(host):
    clock, time = host
    clock.mark("verify")
    time.now += 1000
    clock.begin(8, prefill=False, idle=False)
    clock.mark("draft")
    time.now += 1
    clock.stop()
    assert clock.drain() == [("draft", "host", 1, 8)]


def test_prefill_and_idle_batches(host):
    clock, time = host
    clock.begin(9, prefill=True, idle=False)
    clock.mark("draft_extend")
    time.now += 1
    clock.stop()
    clock.begin(10, prefill=False, idle=True)
    clock.mark("draft")
    clock.stop()
    assert clock.drain() == [("draft_prefill", "host", 1, 9)]


def test_device_times_are_read_when_complete_and_never_waited_for():
    device, time = Device(), Time()
    clock = stages.StageClock(device.event, time)
    clock.begin(1, prefill=False, idle=False)
    clock.mark("draft")
    device.launch(5.0)
    clock.mark("verify")
    device.launch(20.0)
    clock.stop()
    assert clock.drain() == []  # launched only
    device.run(3)  # up to the event between the two
    assert clock.drain() == [("draft", "device", 0.005, 1)]
    assert clock.drain() == []
    device.run()
    assert clock.drain() == [("verify", "device", 0.02, 1)]


def test_host_stages_keep_the_host_clock_beside_a_device():
    device, time = Device(), Time()
    clock = stages.StageClock(device.event, time)
    clock.begin(1, prefill=False, idle=False)
    clock.mark("lookup")
    time.now += 0.25
    clock.mark("tree_build")
    device.launch(2.0)
    clock.stop()
    clock.mark("index_update")
    time.now += 0.5
    clock.stop()
    device.run()
    assert clock.drain() == [
        ("lookup", "host", 0.25, 1),
        ("tree_build", "device", 0.002, 1),
        ("index_update", "host", 0.5, 1),
    ]


def test_events_are_used_again():
    device = Device()
    clock = stages.StageClock(device.event)
    for step in range(200):
        clock.begin(step, prefill=False, idle=False)
        for stage in ("draft", "tree_build", "verify", "draft_extend"):
            clock.mark(stage)
            device.launch(1.0)
        clock.stop()
        device.run()
        assert [t.seconds for t in clock.drain()] == [0.001] * 4
    assert device.made <= 200 + 8  # one a step ends the last segment and is left


def test_without_a_clock_nothing_happens():
    stages.install(None)
    stages.mark("verify")
    stages.stop()
    stages.begin(None)
    assert stages.active() is None


def test_the_installed_clock_is_driven():
    time = Time()
    stages.install(stages.StageClock(None, time))
    try:
        mode = SimpleNamespace(is_extend=lambda: False, is_idle=lambda: False)
        stages.begin(SimpleNamespace(forward_iter=3, forward_mode=mode))
        stages.mark("verify")
        time.now += 1
        stages.stop()
        assert stages.active().drain() == [("verify", "host", 1, 3)]
    finally:
        stages.install(None)


def test_the_cpu_has_no_events():
    pytest.importorskip("torch")
    assert stages.device_event_factory("cpu") is None
