# SPDX-License-Identifier: Apache-2.0
"""Ties the counting to a scheduler: one observer for each that processes results."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any, Callable, Optional, Sequence

from sglang.srt.speculative.observability import drafts, stages
from sglang.srt.speculative.observability.metrics import SpecMetrics
from sglang.srt.speculative.observability.step import Outcome, count_step
from sglang.srt.speculative.observability.summary import RequestSummary
from sglang.srt.speculative.observability.totals import ServerTotals

# Steps and seconds between two exports while no request ends.
FLUSH_STEPS = 16
FLUSH_SECONDS = 1.0
# Steps that the exported ratios look back on.
RATIO_STEPS = 64
# Steps whose stage times may still arrive.
_KEEP = 16


class SpecObserver:
    """Counts a scheduler's speculative steps and exports the sums.

    Args:
        metrics: where to export to; None sums for requests only, on a rank that
            does not report.
        clock: times the stages.
        log: where workers note their drafts.
        now: a clock in seconds.
    """

    def __init__(
        self,
        metrics: Optional[SpecMetrics],
        clock: stages.StageClock,
        log: drafts.DraftLog,
        now: Callable[[], float] = time.monotonic,
    ):
        self._metrics = metrics
        self._clock = clock
        clock.on_backlog = self._collect_times
        self._log = log
        self._now = now
        self._flushed = now()
        self._totals = ServerTotals()
        self._window = ServerTotals()
        # Step -> requests that were in it, and what its stages took so far.
        self._riders: OrderedDict[int, list[RequestSummary]] = OrderedDict()
        self._times: OrderedDict[int, list[stages.StageTime]] = OrderedDict()

    def on_result(
        self, batch: Any, result: Any, committed: Sequence[Sequence[int]]
    ) -> None:
        """A verification's result was read, and the tokens it commits are known.

        To be called before the requests' finish states change. Counts the step and
        adds it to each request's summary (``req.time_stats.spec_summary``).

        Args:
            batch: the batch as it was launched.
            result: its result, with ``num_correct_drafts_per_req_cpu`` set.
            committed: one sequence a request: what it gains, grammar applied.
        """
        width = result.speculative_num_draft_tokens or 1
        noted = self._log.take(batch.forward_iter, width)
        # UNO's roots are no proposals.
        roots = result.num_non_draft_tokens_per_req - 1
        outcomes: list[Optional[Outcome]] = []
        for req, tokens, correct in zip(
            batch.reqs, committed, result.num_correct_drafts_per_req_cpu, strict=True
        ):
            if req.is_retracted or req.finished():
                outcomes.append(None)
                continue
            # A grammar that ends within the accepted path cuts it.
            accepted = tokens[roots : roots + correct]
            reserved = req.kv.kv_allocated_len - req.kv.kv_committed_len
            outcomes.append(Outcome(accepted, len(tokens), max(0, reserved)))
        counts = count_step(noted, outcomes)
        self._totals.add(counts)
        riders = []
        for req, step in zip(batch.reqs, counts.requests, strict=True):
            if step is None:
                continue
            summary = req.time_stats.spec_summary
            if summary is None:
                summary = req.time_stats.spec_summary = RequestSummary()
            summary.totals.add(step)
            riders.append(summary)
        self._board(batch.forward_iter, riders)
        self._collect_times()

    def on_processed(self, batch: Any) -> None:
        """The finish states of ``batch`` are set; its output is about to be sent."""
        if (
            self._totals.steps >= FLUSH_STEPS
            or self._now() - self._flushed >= FLUSH_SECONDS
            or any(req.finished() for req in batch.reqs)
        ):
            self.flush()

    def flush(self) -> None:
        """Exports what was counted and timed since the last time."""
        self._collect_times()
        self._flushed = self._now()
        if not self._totals.steps:
            return
        totals, self._totals = self._totals, ServerTotals()
        if self._metrics is None:
            return
        self._metrics.publish(totals)
        self._window.merge(totals)
        if self._window.steps >= RATIO_STEPS:
            self._metrics.publish_ratios(self._window)
            self._window = ServerTotals()

    def on_idle(self) -> None:
        """Nothing runs: what is still held back is exported."""
        self.flush()
        if self._window.steps and self._metrics is not None:
            self._metrics.publish_ratios(self._window)
            self._window = ServerTotals()

    def _board(self, step: Optional[int], riders: list[RequestSummary]) -> None:
        if step is None:
            return
        self._riders[step] = riders
        while len(self._riders) > _KEEP:
            self._riders.popitem(last=False)
        for took in self._times.pop(step, ()):
            for summary in riders:
                summary.add_seconds(took.stage, took.clock, took.seconds)

    def _collect_times(self) -> None:
        for took in self._clock.drain():
            if self._metrics is not None:
                self._metrics.observe_stage(took.stage, took.clock, took.seconds)
            if took.step is None:
                continue
            riders = self._riders.get(took.step)
            if riders is None:
                # Under overlap a step's stages are over before its result is read.
                self._times.setdefault(took.step, []).append(took)
                while len(self._times) > _KEEP:
                    self._times.popitem(last=False)
                continue
            for summary in riders:
                summary.add_seconds(took.stage, took.clock, took.seconds)


def create_observer(reporter: Any) -> Optional[SpecObserver]:
    """The observer of a scheduler's metrics reporter, made known to its workers.

    None without ``--enable-metrics`` or speculation, and on ranks that neither
    report nor answer requests.
    """
    scheduler = reporter.scheduler
    if not reporter.enable_metrics or scheduler.spec_algorithm.is_none():
        return None
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    answers = reporter.is_stats_logging_rank
    if not (answers or reporter.current_scheduler_metrics_enabled):
        return None
    metrics = None
    # Of a pipeline the last stage drafts and verifies.
    last_stage = parallel.pp_rank == parallel.pp_size - 1
    if reporter.current_scheduler_metrics_enabled and last_stage:
        collector = reporter.metrics_collector
        metrics = SpecMetrics(collector.labels, type(collector))
    make_event = stages.device_event_factory(str(scheduler.device))
    clock, log = stages.StageClock(make_event), drafts.DraftLog()
    stages.install(clock)
    drafts.install(log)
    return SpecObserver(metrics, clock, log)
