# SPDX-License-Identifier: Apache-2.0
"""Times of one step, without a stall.

Host times are read where the loop passes by anyway. The forward pass is timed by
events on its stream, looked at once its result has been processed, when they are
complete; on a CPU, where launching is computing, by the host's clock. Waiting for a
result is not host work: it is measured where upstream waits and taken out.
"""

from __future__ import annotations

from math import inf
from time import perf_counter
from typing import Any, Callable, Optional


class StepRecord:
    """One launched batch on its way to its result."""

    # What is set later stands on the class: one is made for every timed step.
    overlapped = True
    launch = process = waited = waste = 0.0
    started: Any = None
    finished: Any = None

    def __init__(self, phase: int, size: int, rows: int, schedule: float):
        self.phase = phase
        self.size = size
        self.rows = rows
        self.schedule = schedule


class TimedCopy:
    """Stands where a result's ``copy_done`` stood and times the wait for it."""

    __slots__ = ("_inner", "_record")

    def __init__(self, inner: Any, record: StepRecord):
        self._inner = inner
        self._record = record

    def synchronize(self) -> None:
        """Wait for the copy, as the event behind this does."""
        before = perf_counter()
        self._inner.synchronize()
        self._record.waited += perf_counter() - before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class HostClock:
    """Forward times where the launch is the forward pass."""

    on_stream = False

    def seconds(self, record: StepRecord) -> Optional[float]:
        """The whole launch: nothing of it can be used by the host."""
        return record.launch


class DeviceClock:
    """Forward times by a pair of events on the current stream; events are reused.

    Args:
        make_event: returns an event that records times (``record``, ``query``,
            ``elapsed_time`` in milliseconds).
    """

    on_stream = True

    def __init__(self, make_event: Callable[[], Any]):
        self._make_event = make_event
        self._free: list[Any] = []

    def begin(self, record: StepRecord) -> None:
        record.started = self._event()
        record.started.record()

    def end(self, record: StepRecord) -> None:
        record.finished = self._event()
        record.finished.record()

    def seconds(self, record: StepRecord) -> Optional[float]:
        """Time between the two events; None while the device has not passed them."""
        if record.finished is None or not record.finished.query():
            return None
        return record.started.elapsed_time(record.finished) / 1e3

    def release(self, record: StepRecord) -> None:
        for event in (record.started, record.finished):
            if event is not None:
                self._free.append(event)

    def _event(self) -> Any:
        return self._free.pop() if self._free else self._make_event()


class Untimed:
    """Stands where the timer would on ranks that are only told."""

    on_stream = None

    def launch_ended(self, result: Any) -> None:
        pass

    def process_begins(self, result: Any) -> None:
        pass

    def process_ended(self) -> None:
        return None


class StepTimer:
    """Follows the loop and hands complete steps on.

    Every step passes here, most of them untimed: what they cost is the clock, four
    times.

    Args:
        clock: times forward passes.
        observe: takes a step's times, as ``OverlapDecisionMaker.observe`` does.

    Attributes:
        on_stream: the batch being launched if events on its stream shall time it.
    """

    # Results queue up two deep; more than a few records that never complete mean
    # that a loop drops results, which must not grow without bound.
    MOST_PENDING = 8
    # A longer gap between two steps was a pause, a weight update or the like.
    MOST_SCHEDULE_S = 1.0

    def __init__(self, clock: Any, observe: Callable[..., None]):
        self.clock = clock
        self.observe = observe
        self.on_stream: Optional[StepRecord] = None
        self._current: Optional[StepRecord] = None
        self._processing: Optional[StepRecord] = None
        self._pending: list[StepRecord] = []
        # Host time since the last launch, outside of launches and results, up to _last.
        self._schedule = 0.0
        self._last = -inf
        self._began = 0.0

    def untimed_launch_begins(self) -> None:
        """A batch is about to be launched that shall not be timed."""
        self._current = self.on_stream = None
        self._schedule = 0.0

    def launch_begins(self, phase: int, size: int, rows: int, after_idle: bool) -> None:
        """A batch is about to be launched."""
        now = self._began = perf_counter()
        schedule = self._schedule + now - self._last
        self._schedule = 0.0
        # What lies between two busy spells is not the cost of scheduling a step.
        record = None
        if not after_idle and schedule < self.MOST_SCHEDULE_S:
            record = StepRecord(phase, size, rows, schedule)
        self._current = record
        self.on_stream = record if self.clock.on_stream else None

    def forward_begins(self) -> None:
        """The forward pass of ``on_stream`` is about to be put there."""
        self.clock.begin(self.on_stream)

    def forward_ended(self) -> None:
        """All of it is on its stream."""
        self.clock.end(self.on_stream)

    def launch_ended(self, result: Any) -> None:
        """A batch was launched; its record travels with ``result``."""
        now = self._last = perf_counter()
        record = self._current
        if record is not None:
            record.launch = now - self._began
            self._current = self.on_stream = None
            result.overlap_step = record

    def process_begins(self, result: Any) -> None:
        """``result`` is about to be processed."""
        now = self._began = perf_counter()
        self._schedule += now - self._last
        self._processing = record = getattr(result, "overlap_step", None)
        if record is not None and result.copy_done is not None:
            result.copy_done = TimedCopy(result.copy_done, record)

    def process_ended(self) -> Optional[StepRecord]:
        """It was processed. Returns its record, None if it is not timed."""
        now = self._last = perf_counter()
        record = self._processing
        if record is not None:
            record.process = now - self._began - record.waited
        return record

    def hand_on(self, record: StepRecord) -> None:
        """Hands on all steps whose times are known by now, ``record`` as the last."""
        pending = self._pending
        if pending:
            pending.append(record)
            while pending and self._is_handed_on(pending[0], len(pending)):
                del pending[0]
        elif not self._is_handed_on(record, 1):
            pending.append(record)

    def _is_handed_on(self, record: StepRecord, pending: int) -> bool:
        """Hands ``record`` on if its times are known; whether it need not be kept."""
        clock = self.clock
        forward = clock.seconds(record)
        if forward is None:
            return pending > self.MOST_PENDING
        if clock.on_stream:
            clock.release(record)
        self.observe(
            record.phase,
            record.size,
            record.overlapped,
            record.schedule,
            record.launch,
            forward,
            record.process,
            record.waste,
        )
        return True
