# SPDX-License-Identifier: Apache-2.0
"""Times of one step, without a stall.

Host times are read where the loop passes by anyway. The forward pass is timed by
events on its stream, looked at once its result has been processed, when they are
complete; on a CPU, where launching is computing, by the host's clock. Waiting for a
result is not host work: it is measured where upstream waits and taken out.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, Callable, Optional


class StepRecord:
    """One launched batch on its way to its result."""

    __slots__ = (
        "phase",
        "size",
        "rows",
        "overlapped",
        "schedule",
        "launch",
        "process",
        "waited",
        "waste",
        "started",
        "finished",
    )

    def __init__(self, phase: int, size: int, rows: int, schedule: float):
        self.phase = phase
        self.size = size
        self.rows = rows
        self.schedule = schedule
        self.overlapped = True
        self.launch = self.process = self.waited = self.waste = 0.0
        self.started: Any = None
        self.finished: Any = None


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

    def begin(self, record: StepRecord) -> None:
        record.started = perf_counter()

    def end(self, record: StepRecord) -> None:
        record.finished = perf_counter()

    def seconds(self, record: StepRecord) -> Optional[float]:
        """The whole launch: nothing of it can be used by the host."""
        return record.launch

    def release(self, record: StepRecord) -> None:
        pass


class DeviceClock:
    """Forward times by a pair of events on the current stream; events are reused.

    Args:
        make_event: returns an event that records times (``record``, ``query``,
            ``elapsed_time`` in milliseconds).
    """

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


class StepTimer:
    """Follows the loop and hands complete steps on.

    Args:
        clock: times forward passes.
        observe: takes a step's times, as ``OverlapDecisionMaker.observe`` does.
    """

    # Results queue up two deep; more than a few records that never complete mean
    # that a loop drops results, which must not grow without bound.
    MOST_PENDING = 8
    # A longer gap between two steps was a pause, a weight update or the like.
    MOST_SCHEDULE_S = 1.0

    def __init__(self, clock: Any, observe: Callable[..., None]):
        self.clock = clock
        self.observe = observe
        self.current: Optional[StepRecord] = None
        self._pending: list[StepRecord] = []
        self._schedule = 0.0
        self._last: Optional[float] = None
        self._began = 0.0

    def launch_begins(
        self, phase: Optional[int], size: int, rows: int, after_idle: bool
    ) -> None:
        """A batch is about to be launched; ``phase`` None: one that is not timed."""
        now = self._began = perf_counter()
        self.current = None
        if phase is not None and self._last is not None and not after_idle:
            schedule = self._schedule + now - self._last
            # What lies between two busy spells is not the cost of scheduling a step.
            if schedule < self.MOST_SCHEDULE_S:
                self.current = StepRecord(phase, size, rows, schedule)
        self._schedule = 0.0

    def forward_begins(self) -> None:
        if self.current is not None:
            self.clock.begin(self.current)

    def forward_ended(self) -> None:
        if self.current is not None:
            self.clock.end(self.current)

    def launch_ended(self) -> Optional[StepRecord]:
        """The batch's record, to travel with its result; None if it is not timed."""
        now = self._last = perf_counter()
        record, self.current = self.current, None
        if record is not None:
            record.launch = now - self._began
        return record

    def process_begins(self) -> None:
        now = self._began = perf_counter()
        if self._last is not None:
            self._schedule += now - self._last

    def process_ended(
        self, record: Optional[StepRecord], overlapped: bool, wasted_rows: int
    ) -> None:
        """A result was processed; steps whose times are known by now are handed on."""
        now = self._last = perf_counter()
        if record is None:
            return
        record.process = now - self._began - record.waited
        record.overlapped = overlapped
        if record.rows:
            record.waste = wasted_rows / record.rows
        pending = self._pending
        pending.append(record)
        while pending:
            first = pending[0]
            forward = self.clock.seconds(first)
            if forward is None and len(pending) <= self.MOST_PENDING:
                return
            del pending[0]
            if forward is not None:
                self.clock.release(first)
                self.observe(
                    first.phase,
                    first.size,
                    first.overlapped,
                    first.schedule,
                    first.launch,
                    forward,
                    first.process,
                    first.waste,
                )
