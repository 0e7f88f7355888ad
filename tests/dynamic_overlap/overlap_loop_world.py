# SPDX-License-Identifier: Apache-2.0
"""The scheduler's own overlap loops over parts that only take notes.

The loops are upstream's code with this feature's insertions; what they call is
replaced: batches are drawn, a launch hands out an unsampled result, processing checks
that the result is due. So the order of everything can be checked for thousands of
passes in a second, for the disaggregated loops as well.
"""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace

from sglang.srt.disaggregation.decode import SchedulerDisaggregationDecodeMixin
from sglang.srt.disaggregation.prefill import SchedulerDisaggregationPrefillMixin
from sglang.srt.managers.dynamic_overlap.controller import DynamicOverlap
from sglang.srt.managers.scheduler import Scheduler

LOOPS = {
    "null": Scheduler.event_loop_overlap,
    "prefill": SchedulerDisaggregationPrefillMixin.event_loop_overlap_disagg_prefill,
    "decode": SchedulerDisaggregationDecodeMixin.event_loop_overlap_disagg_decode,
}


class Mode:
    def __init__(self, name):
        self.name = name

    def is_extend(self):
        return self.name == "extend"

    def is_decode(self):
        return self.name == "decode"

    def is_idle(self):
        return self.name == "idle"

    def is_prebuilt(self):
        return self.name == "prebuilt"


class Batch(SimpleNamespace):
    """A batch as far as the loops look at it."""

    wasted_rows = 0

    def __bool__(self):
        return True

    def copy(self):
        return Batch(**vars(self))

    def grammar_needs_sync(self):
        return self.grammar


class LoopWorld:
    """What a loop sees of a scheduler.

    Args:
        kind: key of ``LOOPS``.
        maker: decides; None for upstream's loop without the feature.
        passes: passes until the loop is told to end.
        seed: of batches and of idle passes.
        timer, metrics: handed to the feature.
        speculation: batches may have a grammar that needs the last result.
        synchronous: launching is computing; four batches in five need nothing else.
    """

    def __init__(
        self,
        kind,
        maker,
        passes,
        seed,
        timer=None,
        metrics=None,
        speculation=False,
        synchronous=False,
    ):
        self.kind = kind
        self.synchronous = synchronous
        self.random, self.holding = random.Random(seed), random.Random(seed)
        self.plainness = random.Random(seed)
        self.passes = passes
        self.speculation = speculation
        self.log = []
        self.launched = self.processed = 0
        self.scheduled_with_all_processed = 0
        self.most_queued = 0
        self.gracefully_exit = self._engine_paused = self._sched_idled = False
        self.require_mlp_sync = self.enable_unified_memory = self.enable_staging = False
        self.is_generation = self.enable_overlap = True
        self.result_queue = deque()
        self.running_batch = self.last_batch = self.chunked_req = None
        self.waiting_queue, self._deferred_input_requests = [], []
        self.beam_coordinator = SimpleNamespace(_num_live_groups=0)
        self.spec_algorithm = SimpleNamespace(is_none=lambda: not speculation)
        nothing = SimpleNamespace(
            prefetch_prefill_dp_rank_queries=lambda: None, pop_bootstrapped=list
        )
        self.disagg_decode_prealloc_queue = nothing
        self.disagg_prefill_bootstrap_queue = nothing
        self.ngram_embedding_manager = SimpleNamespace(
            prepare_for_forward=lambda batch, chunked_req: batch
        )
        self.get_next_disagg_prefill_batch_to_run = self.get_next_batch_to_run
        self.get_next_disagg_decode_batch_to_run = self.get_next_batch_to_run
        self.radix_sharer = None  # as in a scheduler without --enable-spec-radix-sharing
        self.dynamic_overlap = None
        if maker is not None:
            self.dynamic_overlap = DynamicOverlap(
                self,
                maker,
                metrics,
                timer,
                chunks_send_kv=kind == "prefill",
                plain_launches=synchronous,
                plain_passes=synchronous,
            )

    def run(self):
        LOOPS[self.kind](self)
        return self

    # ---- called by the loops

    def ingest_requests(self, stop_at_pause=False):
        # Whenever there is a last batch a pause processes the queued result itself; it asks
        # whether there is one only where a pass may have left none.
        assert bool(self.last_batch) == bool(self.result_queue) or (
            self.synchronous and self.last_batch
        )
        self.passes -= 1
        self.gracefully_exit = self.passes <= 0
        if self.dynamic_overlap is not None:
            self.dynamic_overlap.take([])
        # Cache warming holds input back while its chunk runs.
        held = self.last_batch and self.holding.random() < 0.2
        self._deferred_input_requests = ["held back"] if held else []
        return []

    def get_next_batch_to_run(self, running_batch, last_batch=None, **more):
        if self.dynamic_overlap is not None:
            assert self.dynamic_overlap.drained <= (not self.result_queue)
        if self.last_batch and not self.result_queue:
            self.scheduled_with_all_processed += 1
        batch = None
        if self.random.random() < 0.9:
            mode = Mode(
                "extend"
                if self.kind == "prefill"
                else self.random.choice(("extend", "decode", "decode", "decode"))
            )
            rows = self.random.randrange(1, 9)
            batch = Batch(
                number=self.launched,
                forward_mode=mode,
                reqs=[SimpleNamespace(inflight_middle_chunks=0)] * rows,
                extend_num_tokens=rows * 10,
                is_extend_in_batch=mode.is_extend(),
                grammar=self.speculation and self.random.random() < 0.3,
                spec_algorithm=self.spec_algorithm,
                has_grammar=self.plainness.random() < 0.2,
                sampling_info=SimpleNamespace(
                    penalizer_orchestrator=SimpleNamespace(is_required=False),
                    acc_additive_penalties=None,
                    acc_scaling_penalties=None,
                ),
            )
            if self.kind == "prefill" and self.random.random() < 0.3:
                self.chunked_req = batch.reqs[0] = SimpleNamespace(inflight_middle_chunks=1)
            else:
                self.chunked_req = None
        return SimpleNamespace(batch_to_run=batch, running_batch=None)

    def is_disable_overlap_for_batch(self, batch, last_batch):
        return Scheduler.is_disable_overlap_for_batch(self, batch, last_batch)

    def run_batch(self, batch):
        if self.dynamic_overlap is not None:
            self.dynamic_overlap.launch_begins(batch)
        self._sched_idled = False
        assert batch.number == self.launched
        self.launched += 1
        self.log.append(("launch", batch.number))
        if batch.grammar and batch.forward_mode.is_decode():
            assert self.processed == batch.number, "the grammar has not seen the last result"
        plainly = not self.enable_overlap
        assert not (plainly and (self.result_queue or batch.has_grammar))
        result = SimpleNamespace(number=batch.number, sampled=plainly, copy_done=None)
        if self.dynamic_overlap is not None:
            self.dynamic_overlap.launch_ended(result)
        return result

    def launch_batch_sample_if_needed(self, result, batch):
        if result is not None and not result.sampled:
            assert batch.number == result.number
            result.sampled = True

    def process_batch_result(self, batch, result):
        if self.dynamic_overlap is not None:
            self.dynamic_overlap.timer.process_begins(result)
        self.most_queued = max(self.most_queued, self.launched - self.processed)
        assert result.number == batch.number == self.processed, "out of order, or twice"
        assert result.sampled, "processed before it was sampled"
        self.processed += 1
        self.log.append(("process", result.number))
        if self.dynamic_overlap is not None:
            self.dynamic_overlap.process_ended(batch)

    def on_idle(self):
        assert not self.result_queue
        self.log.append(("idle", self.launched))

    def _is_continuous_input_polling_enabled(self):
        return False

    def _war_barrier_is_coarse(self):
        return True

    def _apply_war_barrier(self):
        pass

    def process_disagg_prefill_inflight_queue(self):
        pass

    def process_decode_queue(self):
        pass

    def _record_scheduler_state_for_paused_engine(self):
        pass

    _yield_gil_if_needed = _record_scheduler_state_for_paused_engine
