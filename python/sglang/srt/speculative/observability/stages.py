# SPDX-License-Identifier: Apache-2.0
"""Seconds that the stages of a speculative step take.

A step is cut into consecutive segments: ``mark`` ends the segment before it. On an
accelerator the ends are events of the current stream, read when they have
completed, so timing never waits for the device. Stages that run on the host
everywhere (``HOST_STAGES``) are timed by the host's clock there too.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from typing import Any, Callable, Iterator, NamedTuple, Optional

DRAFT = "draft"
TREE_BUILD = "tree_build"
VERIFY = "verify"
DRAFT_EXTEND = "draft_extend"
# The draft model reads the prompt; a part of prefill, not of a decode step.
DRAFT_PREFILL = "draft_prefill"
# A proposer without a model looks drafts up, and takes in what was verified.
LOOKUP = "lookup"
INDEX_UPDATE = "index_update"

STAGES = (
    DRAFT,
    TREE_BUILD,
    VERIFY,
    DRAFT_EXTEND,
    DRAFT_PREFILL,
    LOOKUP,
    INDEX_UPDATE,
)
HOST_STAGES = frozenset((LOOKUP, INDEX_UPDATE))
HOST, DEVICE = "host", "device"
# Segments that may wait to be drained.
BACKLOG = 64


class StageTime(NamedTuple):
    """One segment: its stage, the clock that measured it, seconds, and the step."""

    stage: str
    clock: str
    seconds: float
    step: Optional[int]


class _Segment(NamedTuple):
    stage: str
    clock: str
    step: Optional[int]
    start: Any
    end: Any


class StageClock:
    """Times one scheduler's speculative steps.

    Args:
        make_event: makes a device event with ``record``, ``query`` and
            ``elapsed_time`` (milliseconds); None where there is no device.
        now: the host's clock in seconds.
    """

    def __init__(
        self,
        make_event: Optional[Callable[[], Any]] = None,
        now: Callable[[], float] = time.perf_counter,
    ):
        self._make_event = make_event
        self._now = now
        self._stage: Optional[str] = None
        self._clock = HOST
        self._start: Any = None
        self._done: deque[_Segment] = deque()
        self._spare: list[Any] = []
        self._step: Optional[int] = None
        self._prefill = self._idle = False
        # Called when many segments wait: a server that only prefills has no step
        # results with which they would be drained.
        self.on_backlog: Optional[Callable[[], None]] = None

    def begin(self, step: Optional[int], *, prefill: bool, idle: bool) -> None:
        """A batch is launched; what it did not end, an error cut short.

        Args:
            step: number of the forward pass.
            prefill: the batch computes prompts.
            idle: the batch has no requests (another rank's has); it is not timed.
        """
        self._stage = self._start = None
        self._step, self._prefill, self._idle = step, prefill, idle
        if len(self._done) >= BACKLOG and self.on_backlog is not None:
            self.on_backlog()

    def mark(self, stage: str) -> None:
        """The current segment, if any, ends here and one of ``stage`` begins."""
        if self._idle:
            return
        if self._prefill and stage == DRAFT_EXTEND:
            stage = DRAFT_PREFILL
        clock = self._clock_of(stage)
        stamp = None
        if self._stage is not None:
            stamp = self._end()
        # Consecutive segments of one clock share the stamp between them.
        if stamp is None or clock != self._clock:
            stamp = self._stamp(clock)
        self._stage, self._clock, self._start = stage, clock, stamp

    def stop(self) -> None:
        """The current segment, if any, ends here."""
        if self._stage is not None:
            self._end()
            self._stage = self._start = None

    @contextmanager
    def span(self, stage: str, inner: Any) -> Iterator[None]:
        """``inner`` (a context manager) and a segment that ends with it.

        Marks inside it cut it into several segments.
        """
        with inner:
            self.mark(stage)
            try:
                yield
            finally:
                self.stop()

    def drain(self) -> list[StageTime]:
        """Segments that have completed since the last call, in their order."""
        out = []
        while self._done:
            segment = self._done[0]
            if segment.clock == HOST:
                seconds = segment.end - segment.start
            elif segment.end.query():
                seconds = segment.start.elapsed_time(segment.end) / 1e3
            else:
                break
            self._done.popleft()
            if segment.clock == DEVICE:
                self._recycle(segment.start)
            out.append(StageTime(segment.stage, segment.clock, seconds, segment.step))
        return out

    def _clock_of(self, stage: str) -> str:
        on_host = self._make_event is None or stage in HOST_STAGES
        return HOST if on_host else DEVICE

    def _stamp(self, clock: str) -> Any:
        if clock == HOST:
            return self._now()
        event = self._spare.pop() if self._spare else self._make_event()
        event.record()
        return event

    def _end(self) -> Any:
        stamp = self._stamp(self._clock)
        self._done.append(
            _Segment(self._stage, self._clock, self._step, self._start, stamp)
        )
        return stamp

    def _recycle(self, event: Any) -> None:
        """Keeps an event for later. One that only ends a segment is left to die:

        whether the next segment starts with it is not known here.
        """
        if len(self._spare) < 64:
            self._spare.append(event)


def device_event_factory(device: str) -> Optional[Callable[[], Any]]:
    """Makes timing events on ``device``; None for the CPU and devices without them."""
    import torch

    if device.split(":")[0] == "cpu":
        return None
    module = torch.get_device_module(device)
    try:
        module.Event(enable_timing=True)
    except (AttributeError, TypeError):
        return None
    return lambda: module.Event(enable_timing=True)


# The clock of this process' scheduler; None without --enable-metrics.
_active: Optional[StageClock] = None


def install(clock: Optional[StageClock]) -> None:
    """Makes ``clock`` the one that the functions below drive; None stops timing."""
    global _active
    _active = clock


def active() -> Optional[StageClock]:
    """The installed clock."""
    return _active


def begin(batch: Any) -> None:
    """The scheduler launches ``batch``."""
    if _active is not None:
        mode = batch.forward_mode
        _active.begin(batch.forward_iter, prefill=mode.is_extend(), idle=mode.is_idle())


def mark(stage: str) -> None:
    """See ``StageClock.mark``."""
    if _active is not None:
        _active.mark(stage)


def stop() -> None:
    """See ``StageClock.stop``."""
    if _active is not None:
        _active.stop()
