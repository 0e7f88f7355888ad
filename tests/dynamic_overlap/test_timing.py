# SPDX-License-Identifier: Apache-2.0
"""Times of a step: waits are taken out, events are read when ready, nothing blocks."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import pytest

timing = pytest.importorskip(
    "sglang.srt.managers.dynamic_overlap.timing",
    reason="topic dynamic-overlap is not in this build",
)


class World:
    """A host clock and a device that works through its queue of milliseconds."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        self.device_free = 0.0
        self.made = 0
        monkeypatch.setattr(timing, "perf_counter", lambda: self.now)

    def event(self):
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, world):
        self.world = world

    def record(self):
        self.at = max(self.world.now, self.world.device_free)

    def query(self):
        return self.world.now >= self.at

    def elapsed_time(self, other):
        assert self.query() and other.query(), "an unfinished event was read"
        return (other.at - self.at) * 1e3

    def synchronize(self):
        raise AssertionError("the timer must not wait for the device")


class Copy:
    """Waits as upstream does."""

    def __init__(self, world, event):
        self.world, self.event = world, event

    def synchronize(self):
        self.world.now = max(self.world.now, self.event.at)

    def query(self):
        return self.event.query()


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def launch(world, timer, rows, forward, seconds, timed=True, after_idle=False):
    """One launch; its result."""
    if timed:
        timer.launch_begins(1, rows, rows, after_idle)
    else:
        timer.untimed_launch_begins()
    if timer.on_stream:
        timer.forward_begins()
    world.device_free = max(world.now, world.device_free) + forward
    if timer.on_stream:
        timer.forward_ended()
    done = Copy(world, Event(world))
    done.event.record()
    world.now += seconds
    result = SimpleNamespace(copy_done=done, overlap_step=None)
    timer.launch_ended(result)
    return result


def process(world, timer, result, seconds, overlapped=True, waste=0.0):
    timer.process_begins(result)
    result.copy_done.synchronize()
    world.now += seconds
    record = timer.process_ended()
    assert record is result.overlap_step
    if record is not None:
        record.overlapped, record.waste = overlapped, waste
        timer.hand_on(record)


def test_an_overlapped_loop(world):
    seen = []
    timer = timing.StepTimer(timing.DeviceClock(world.event), lambda *a: seen.append(a))
    queue = deque()
    for _ in range(50):
        world.now += 0.003  # scheduling
        queue.append(launch(world, timer, 8, forward=0.05, seconds=0.002))
        if len(queue) > 1:
            process(world, timer, queue.popleft(), seconds=0.004, waste=0.25)
    # The first has no step before it to measure scheduling from.
    assert len(seen) >= 46
    for phase, size, overlapped, schedule, launched, forward, processed, waste in seen[2:]:
        assert (phase, size, overlapped, waste) == (1, 8, True, 0.25)
        assert schedule == pytest.approx(0.003)
        assert launched == pytest.approx(0.002)
        assert forward == pytest.approx(0.05)
        assert processed == pytest.approx(0.004)
    assert world.made <= 8, "events are made anew for every step"


def test_a_drained_loop_with_taking_in_requests_before_and_scheduling_after(world):
    seen = []
    timer = timing.StepTimer(timing.DeviceClock(world.event), lambda *a: seen.append(a))
    pending = None
    for _ in range(20):
        world.now += 0.001  # taking in requests
        if pending:
            process(world, timer, pending, seconds=0.004, overlapped=False)
        world.now += 0.003  # scheduling
        pending = launch(world, timer, 8, forward=0.05, seconds=0.002)
    for _, _, overlapped, schedule, launched, forward, processed, _ in seen[1:]:
        assert overlapped is False
        assert (schedule, launched) == (pytest.approx(0.004), pytest.approx(0.002))
        assert (forward, processed) == (pytest.approx(0.05), pytest.approx(0.004))


def test_a_cpu_launch_is_its_forward_pass(world):
    seen = []
    timer = timing.StepTimer(timing.HostClock(), lambda *a: seen.append(a))
    launch(world, timer, 1, 0, 0.01)
    process(world, timer, launch(world, timer, 1, 0, 0.02), 0.004)
    (_, _, _, _, launched, forward, _, _) = seen[0]
    assert forward == launched == pytest.approx(0.02)


@pytest.mark.parametrize("after_idle", [True, False])
def test_a_pause_is_no_scheduling(world, after_idle):
    seen = []
    timer = timing.StepTimer(timing.HostClock(), lambda *a: seen.append(a))
    process(world, timer, launch(world, timer, 1, 0, 0.01), 0.001)
    world.now += 60
    result = launch(world, timer, 1, 0, 0.01, after_idle=after_idle)
    assert result.overlap_step is None
    process(world, timer, result, 0.001)
    process(world, timer, launch(world, timer, 1, 0, 0.01), 0.001)
    assert len(seen) == 1
    assert seen[0][3] < 0.1


def test_untimed_steps_take_no_events_and_count_as_no_scheduling(world):
    seen = []
    timer = timing.StepTimer(timing.DeviceClock(world.event), lambda *a: seen.append(a))
    process(world, timer, launch(world, timer, 1, 0, 0.01), 0.001)
    for _ in range(3):
        world.now += 0.003
        result = launch(world, timer, 1, 0, 0.01, timed=False)
        assert result.overlap_step is None
        process(world, timer, result, 0.001)
    assert world.made == 0
    world.now += 0.002
    process(world, timer, launch(world, timer, 1, 0, 0.01), 0.001)
    assert [step[3] for step in seen] == [pytest.approx(0.002)]


def test_an_event_that_never_completes_is_dropped(world):
    """A loop that drops results must not collect records for ever."""
    seen = []
    timer = timing.StepTimer(timing.DeviceClock(world.event), lambda *a: seen.append(a))
    launch(world, timer, 1, 0.0, 0.01)
    for _ in range(100):
        result = launch(world, timer, 1, forward=1e6, seconds=0.01)  # hangs
        result.copy_done = None
        timer.process_begins(result)
        timer.hand_on(timer.process_ended())
    assert not seen
    assert len(timer._pending) <= timer.MOST_PENDING


def test_a_timed_copy_is_the_copy(world):
    inner = SimpleNamespace(query=lambda: "asked", record="attribute", synchronize=lambda: None)
    copy = timing.TimedCopy(inner, timing.StepRecord(0, 1, 1, 0.0))
    copy.synchronize()
    assert (copy.query(), copy.record) == ("asked", "attribute")
