# SPDX-License-Identifier: Apache-2.0
"""Joins the decision to a scheduler's loops.

A pass of ``event_loop_overlap`` takes in requests, schedules batch N, launches it and
only then processes the result of N - 1. To process it first, this does so before N is
scheduled, so that N is what ``--disable-overlap-schedule`` would run. From there on
the loop must not process anything in this pass: it is told that N does not overlap,
and finds an empty queue.

What upstream decides after N is chosen (consecutive prefills, a grammar under
speculation) stays as it is.

Where launching is computing, the decision about N's result is due before N is launched:
if it shall not overlap, the pass is one of the loop without overlap from there on, and
leaves nothing in the queue (``runs_alone``).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator, Optional, Sequence, Union

from sglang.srt.managers.dynamic_overlap import penalties
from sglang.srt.managers.dynamic_overlap.decision import (
    DECODE,
    PREFILL,
    OverlapDecisionMaker,
)
from sglang.srt.managers.dynamic_overlap.metrics import (
    EXPORT_INTERVAL_STEPS,
    OverlapMetrics,
)
from sglang.srt.managers.dynamic_overlap.timing import StepTimer, Untimed
from sglang.srt.managers.dynamic_overlap.updates import (
    OverlapUpdate,
    make_update,
    split_updates,
)

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler

# Outcomes and reasons beside the decision maker's own.
NO_FORWARD = True, "no_forward"
BEAM_SEARCH = True, "beam_search"
KV_SEND = True, "kv_send"
CONSECUTIVE_PREFILL = False, "consecutive_prefill"
GRAMMAR = False, "grammar"
FORCED = False, "forced"


class DynamicOverlap:
    """One scheduler's decisions.

    Args:
        scheduler: whose result queue is drained.
        maker: decides.
        metrics: counts; None on ranks that export nothing.
        timer: measures; None on ranks that are only told. Its own hooks are called by
            the patched places without a detour, as every call costs.
        chunks_send_kv: a chunk's result sends KV up to where the next pass says
            (prefill instance of a disaggregated pair).
        plain_launches: a batch that runs alone is launched as the loop without overlap
            launches it, which spares the copies and events that overlapping needs.
            Only where a launch blocks until its result is there, and without
            speculation, which keeps other state in the two kinds of launch.
        plain_passes: its result is also processed as there, in the pass that launched
            it. Not where ranks hold different batches: only some could.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        maker: OverlapDecisionMaker,
        metrics: Optional[OverlapMetrics],
        timer: Optional[StepTimer],
        chunks_send_kv: bool = False,
        plain_launches: bool = False,
        plain_passes: bool = False,
    ):
        self.scheduler = scheduler
        self.maker = maker
        self.metrics = metrics
        self.timer: Union[StepTimer, Untimed] = timer or Untimed()
        self._measures = timer is not None
        self.chunks_send_kv = chunks_send_kv
        self._plain_launches = plain_launches
        self._plain_passes = plain_passes
        self._launched_plainly = self._runs_alone = False
        self._counts = None if metrics is None else metrics.counts
        self._unexported = 0
        # Whether the last result was processed before this pass scheduled.
        self.drained = False
        self._overlapping = True
        self._decided: Optional[tuple[bool, str]] = None
        # Decided before the launch, about the result that the queue gets.
        self._ahead: Optional[tuple[bool, str]] = None
        # Phase and size of the batch launched last, whose result is decided about.
        self._phase: Optional[int] = None
        self._size = 0

    # ---- input, on all ranks in the same pass

    def poll(self) -> Sequence[OverlapUpdate]:
        """What this rank has to tell all ranks; repeated until it has come back."""
        if not self.maker.proposals:
            return ()
        return (make_update(list(self.maker.proposals.values())),)

    def take(self, received: list[Any]) -> list[Any]:
        """Applies decisions among the input and returns the rest of it."""
        for item in received:
            if type(item) is OverlapUpdate:
                proposals, received = split_updates(received)
                self.maker.apply(proposals)
                break
        return received

    # ---- the loops

    def before_schedule(self) -> None:
        """Decides about the queued result; processes it unless it shall overlap."""
        self.drained = False
        self._overlapping = True
        ahead, self._ahead = self._ahead, None
        scheduler = self.scheduler
        if not scheduler.result_queue or not scheduler.last_batch:
            self._decided = None
            if scheduler.last_batch:
                self.drained = True
            elif self._unexported:
                self._export()
        elif self._phase is None:
            self._decided = NO_FORWARD
        elif scheduler.beam_coordinator._num_live_groups:
            # Beams commit by ticks that assume one state of the loop throughout.
            self._decided = BEAM_SEARCH
        elif self.chunks_send_kv and self._chunk_is_unfinished():
            self._decided = KV_SEND
        else:
            decided = ahead or self.maker.decide(self._phase, self._size)
            if decided[0]:
                self._decided = decided
            else:
                self._decided = None
                self._count(decided)
                self._drain()

    def _chunk_is_unfinished(self) -> bool:
        """Whether the queued result belongs to a chunk that others follow.

        The chunk enters the tree, which may move its pages, in the next pass; sending
        before would read pages that the tree then frees.
        """
        scheduler = self.scheduler
        return scheduler.chunked_req is not None or any(
            req.inflight_middle_chunks > 0 for req in scheduler.result_queue[0][0].reqs
        )

    def _drain(self) -> None:
        """Processes what is queued."""
        self._overlapping = False
        scheduler = self.scheduler
        sampling = getattr(scheduler.last_batch, "sampling_info", None)
        penalized = sampling is not None and sampling.penalizer_orchestrator.is_required
        while scheduler.result_queue:
            batch, result = scheduler.result_queue.popleft()
            if penalized:
                penalties.remember(batch)
            scheduler.process_batch_result(batch, result)
        self.drained = True

    def before_launch(
        self, forced: Any = False, grammar: Any = False, consecutive: Any = False
    ) -> bool:
        """Counts a decision to overlap. Whether the result has been processed already.

        Args:
            forced: someone else has the result processed before the launch;
            grammar, consecutive: because of what. All are asked for their truth only.
        """
        decided = self._decided
        if decided is not None:
            self._decided = None
            if forced:
                if grammar:
                    decided = GRAMMAR
                else:
                    decided = CONSECUTIVE_PREFILL if consecutive else FORCED
            self._count(decided)
        if self.drained:
            penalties.forget()
            return True
        if forced:
            self._overlapping = False
        return False

    def runs_alone(self, batch: Optional[ScheduleBatch]) -> bool:
        """Whether this pass shall launch ``batch`` and process its result at once.

        Asked between scheduling and launching. Decides about the result of ``batch``
        and counts that; otherwise ``before_schedule`` does, or is told.
        """
        scheduler = self.scheduler
        if (
            not self._plain_passes
            or not batch
            or scheduler.result_queue
            or scheduler.beam_coordinator._num_live_groups
        ):
            return False
        self._phase, self._size = phase, size = self._kind_of(batch)
        if phase is None or not _is_plain(batch):
            return False
        decided = self.maker.decide(phase, size)
        if decided[0]:
            self._ahead = decided
            return False
        self._count(decided)
        self._overlapping = False
        self._runs_alone = True
        penalties.forget()
        return True

    @contextmanager
    def nothing_in_flight(self) -> Iterator[None]:
        """The scheduler takes itself for one without overlap; its queue is empty."""
        self.scheduler.enable_overlap = False
        try:
            yield
        finally:
            self.scheduler.enable_overlap = True

    def _count(self, decided: tuple[bool, str]) -> None:
        if self._counts is not None:
            self._counts[decided] += 1
            self._unexported += 1
            if self._unexported >= EXPORT_INTERVAL_STEPS:
                self._export()

    def _export(self) -> None:
        """Brings the exported metrics up to date; also when there is nothing to do."""
        self._unexported = 0
        assert self.metrics is not None
        self.metrics.export()

    # ---- launches and results

    def launch_begins(self, batch: ScheduleBatch) -> None:
        """``run_batch`` starts."""
        idle = False
        if self._runs_alone:
            self._runs_alone = False
            phase, size = self._phase, self._size
            plainly = True
        else:
            self._phase, self._size = phase, size = self._kind_of(batch)
            idle = self.scheduler.require_mlp_sync and batch.forward_mode.is_idle()
            plainly = (
                self._plain_launches
                and phase is not None
                and not self.scheduler.result_queue
                and _is_plain(batch)
            )
        if plainly:
            self._launched_plainly = True
            self.scheduler.enable_overlap = False
        if self._measures:
            if phase is None or idle or not self.maker.wants_times(phase, size):
                self.timer.untimed_launch_begins()
            else:
                self.timer.launch_begins(
                    phase, size, len(batch.reqs), self.scheduler._sched_idled
                )

    def _kind_of(self, batch: ScheduleBatch) -> tuple[Optional[int], int]:
        """Phase (None: no forward pass) and size of a batch, the same on all ranks."""
        mode = batch.forward_mode
        if self.scheduler.require_mlp_sync:
            # Only what the ranks have synchronised: their batches differ.
            if mode.is_prebuilt():
                return None, 0
            return (PREFILL if batch.is_extend_in_batch else DECODE), 0
        if mode.is_decode():
            return DECODE, len(batch.reqs)
        if mode.is_extend():
            return PREFILL, batch.extend_num_tokens or 0
        return None, 0

    def launch_ended(self, result: Any) -> None:
        """``run_batch`` returns ``result``."""
        self.timer.launch_ended(result)
        if self._launched_plainly:
            self._launched_plainly = False
            self.scheduler.enable_overlap = True

    def process_ended(self, batch: ScheduleBatch) -> None:
        """``process_batch_result`` returns."""
        record = self.timer.process_ended()
        if record is None:
            return
        record.overlapped = self._overlapping
        # A row for a request that has ended costs something where another request
        # waits for its place, or where it is all that the step computes.
        wasted, rows = batch.wasted_rows, len(batch.reqs)
        if wasted and (wasted >= rows or self._others_wait()):
            record.waste = wasted / record.rows
        self.timer.hand_on(record)

    def _others_wait(self) -> bool:
        """Whether a request waits for a place in the batch."""
        if self.scheduler.waiting_queue:
            return True
        # A decode instance holds them back until there is room for their KV.
        held = getattr(self.scheduler, "disagg_decode_prealloc_queue", None)
        return held is not None and bool(held.queue or held.retracted_queue)


def _is_plain(batch: ScheduleBatch) -> bool:
    """Whether both kinds of launch find the same state for this batch.

    Under overlap a grammar's tokens are sampled after the last result, and penalties
    are summed up before the launch, into fields that the next such launch empties.
    """
    info = batch.sampling_info
    return not (
        info is None
        or batch.has_grammar
        or info.penalizer_orchestrator.is_required
        or info.acc_additive_penalties is not None
        or info.acc_scaling_penalties is not None
    )
