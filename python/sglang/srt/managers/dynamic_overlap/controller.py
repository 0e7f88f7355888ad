# SPDX-License-Identifier: Apache-2.0
"""Joins the decision to a scheduler's loops.

A pass of ``event_loop_overlap`` takes in requests, schedules batch N, launches it and
only then processes the result of N - 1. To process it first, this does so before N is
scheduled, so that N is what ``--disable-overlap-schedule`` would run. From there on
the loop must not process anything in this pass: it is told that N does not overlap,
and finds an empty queue.

What upstream decides after N is chosen (consecutive prefills, a grammar under
speculation) stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Sequence

from sglang.srt.managers.dynamic_overlap import penalties
from sglang.srt.managers.dynamic_overlap.decision import (
    DECODE,
    PREFILL,
    OverlapDecisionMaker,
)
from sglang.srt.managers.dynamic_overlap.metrics import OverlapMetrics
from sglang.srt.managers.dynamic_overlap.timing import StepTimer, TimedCopy
from sglang.srt.managers.dynamic_overlap.updates import (
    OverlapUpdate,
    make_update,
    split_updates,
)

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler

# Reasons beside the decision maker's own.
NO_FORWARD = "no_forward"
BEAM_SEARCH = "beam_search"
KV_SEND = "kv_send"
CONSECUTIVE_PREFILL = "consecutive_prefill"
GRAMMAR = "grammar"
FORCED = "forced"


class DynamicOverlap:
    """One scheduler's decisions.

    Args:
        scheduler: whose result queue is drained.
        maker: decides.
        metrics: counts; None on ranks that export nothing.
        timer: measures; None on ranks that are only told.
        chunks_send_kv: a chunk's result sends KV up to where the next pass says
            (prefill instance of a disaggregated pair).
    """

    def __init__(
        self,
        scheduler: Scheduler,
        maker: OverlapDecisionMaker,
        metrics: Optional[OverlapMetrics],
        timer: Optional[StepTimer],
        chunks_send_kv: bool = False,
    ):
        self.scheduler = scheduler
        self.maker = maker
        self.metrics = metrics
        self.timer = timer
        self.chunks_send_kv = chunks_send_kv
        # Whether this pass has processed the last result before scheduling.
        self.drained = False
        self._overlapping = True
        self._decided: Optional[tuple[bool, str]] = None
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
        scheduler = self.scheduler
        if not scheduler.result_queue or not scheduler.last_batch:
            self._decided = None
            if self.metrics is not None:
                self.metrics.export_rest()
            return
        reason = self._must_overlap()
        if reason is not None:
            self._decided = (True, reason)
            return
        self._decided = decided = self.maker.decide(self._phase, self._size)
        if not decided[0]:
            self._overlapping = False
            sampling = getattr(scheduler.last_batch, "sampling_info", None)
            penalized = (
                sampling is not None and sampling.penalizer_orchestrator.is_required
            )
            while scheduler.result_queue:
                batch, result = scheduler.result_queue.popleft()
                if penalized:
                    penalties.remember(batch)
                scheduler.process_batch_result(batch, result)
            self.drained = True

    def before_launch(
        self, forced: bool = False, grammar: bool = False, consecutive: bool = False
    ) -> bool:
        """Counts this pass's decision. Whether its result has been processed already.

        Args:
            forced: someone else has the result processed before the launch;
            grammar, consecutive: because of what.
        """
        decided, self._decided = self._decided, None
        self._overlapping = not (forced or self.drained)
        if self.drained:
            penalties.forget()
        if decided is not None and self.metrics is not None:
            if forced and decided[0]:
                reason = (
                    GRAMMAR
                    if grammar
                    else CONSECUTIVE_PREFILL
                    if consecutive
                    else FORCED
                )
                decided = (False, reason)
            self.metrics.decided(*decided)
        return self.drained

    def _must_overlap(self) -> Optional[str]:
        """Why the queued result may not be processed before the next batch is chosen."""
        if self._phase is None:
            return NO_FORWARD
        scheduler = self.scheduler
        # Beams commit by ticks that assume one state of the loop throughout.
        if scheduler.beam_coordinator._num_live_groups:
            return BEAM_SEARCH
        if self.chunks_send_kv and (
            scheduler.chunked_req is not None
            or any(
                req.inflight_middle_chunks > 0
                for req in scheduler.result_queue[0][0].reqs
            )
        ):
            # The chunk enters the tree, which may move its pages, in the next pass;
            # sending before would read pages that the tree then frees.
            return KV_SEND
        return None

    # ---- launches and results

    def launch_begins(self, batch: ScheduleBatch) -> None:
        """``run_batch`` starts."""
        scheduler = self.scheduler
        mode = batch.forward_mode
        phase: Optional[int]
        if scheduler.require_mlp_sync:
            # Only what the ranks have synchronised: their batches differ.
            phase = PREFILL if batch.is_extend_in_batch else DECODE
            if mode.is_prebuilt():
                phase = None
            size = 0
        elif mode.is_decode():
            phase, size = DECODE, len(batch.reqs)
        elif mode.is_extend():
            phase, size = PREFILL, batch.extend_num_tokens or 0
        else:
            phase, size = None, 0
        self._phase, self._size = phase, size
        if self.timer is not None:
            timed = (
                phase is not None
                and not mode.is_idle()
                and self.maker.wants_times(phase, size)
            )
            self.timer.launch_begins(
                phase if timed else None,
                size,
                len(batch.reqs),
                scheduler._sched_idled,
            )

    def forward_begins(self) -> None:
        """The forward pass is about to be put on its stream."""
        if self.timer is not None:
            self.timer.forward_begins()

    def forward_ended(self) -> None:
        """All of it is on its stream."""
        if self.timer is not None:
            self.timer.forward_ended()

    def launch_ended(self, result: Any) -> None:
        """``run_batch`` returns ``result``."""
        if self.timer is not None:
            result.overlap_step = self.timer.launch_ended()

    def process_begins(self, result: Any) -> None:
        """``process_batch_result`` starts."""
        if self.timer is None:
            return
        record = getattr(result, "overlap_step", None)
        if record is not None and result.copy_done is not None:
            result.copy_done = TimedCopy(result.copy_done, record)
        self.timer.process_begins()

    def process_ended(self, batch: ScheduleBatch, result: Any) -> None:
        """``process_batch_result`` returns."""
        if self.timer is None:
            return
        record = getattr(result, "overlap_step", None)
        wasted = batch.wasted_rows
        # A row for a request that has ended costs something where another request
        # waits for its place, or where it is all that the step computes.
        if wasted and wasted < len(batch.reqs) and not self.scheduler.waiting_queue:
            wasted = 0
        self.timer.process_ended(record, self._overlapping, wasted)
