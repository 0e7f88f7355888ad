# SPDX-License-Identifier: Apache-2.0
"""Joins cache warming to a scheduler. Every rank has one; one rank also decides.

The patched places call: ``poll`` and ``admit`` where input is ingested, ``handle``
and ``control`` where it is dispatched, ``make_request`` where a request is made,
and the ``on_*`` methods where something happened that entries must know of.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Optional
from weakref import WeakSet

from sglang.srt.managers.io_struct import (
    AbortReq,
    BatchTokenizedEmbeddingReqInput,
    BatchTokenizedGenerateReqInput,
    CacheWarmingReqInput,
    CacheWarmingReqOutput,
    TokenizedEmbeddingReqInput,
    TokenizedGenerateReqInput,
)
from sglang.srt.managers.utils import is_health_check_generate_req
from sglang.srt.mem_cache.cache_warming import control
from sglang.srt.mem_cache.cache_warming.hints import HintOrder
from sglang.srt.mem_cache.cache_warming.lora_ids import LoraIds
from sglang.srt.mem_cache.cache_warming.metrics import WarmingMetrics
from sglang.srt.mem_cache.cache_warming.pins import PinTable
from sglang.srt.mem_cache.cache_warming.planner import Planner
from sglang.srt.mem_cache.cache_warming.prefix_index import PrefixKey
from sglang.srt.mem_cache.cache_warming.request import (
    WarmingReq,
    WarmingReqInput,
    request_input,
)
from sglang.srt.mem_cache.cache_warming.steps import (
    DropStep,
    HintStep,
    PinStep,
    PrefillStep,
    UnpinStep,
    WarmingStep,
    WithdrawStep,
)
from sglang.srt.mem_cache.cache_warming.tree import drop_prefix

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import Scheduler

logger = logging.getLogger(__name__)

_WORK = (
    TokenizedGenerateReqInput,
    TokenizedEmbeddingReqInput,
    BatchTokenizedGenerateReqInput,
    BatchTokenizedEmbeddingReqInput,
)
# Inputs that need no idle engine, so that they need not wait for a chunk's end.
_NO_IDLE_NEEDED = (*_WORK, AbortReq, WarmingStep, CacheWarmingReqInput)
# Passes after which a step's request that is still queued counts as without room.
# Admission may take some passes by design (prefill delayer, PD bootstrap).
PATIENCE_PASSES = 64


class CacheWarmer:
    """See the module.

    Args:
        scheduler: the one it serves.
        planner: on the deciding rank; None on the others.
        hints: in tree mode.
        metrics: the planner's.
        lora_ids: the planner's.
        serve_priority: see ``request_input``.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        planner: Optional[Planner],
        hints: Optional[HintOrder],
        metrics: WarmingMetrics,
        lora_ids: LoraIds,
        serve_priority: bool,
    ):
        self.planner = planner
        self.hints = hints
        self.metrics = metrics
        self._scheduler = scheduler
        self._lora_ids = lora_ids
        self._serve_priority = serve_priority
        self._prefill_instance = scheduler.disaggregation_mode.value == "prefill"
        self._pins = PinTable(scheduler.tree_cache)
        # The step whose request is on its way, and that request.
        self._step: Optional[PrefillStep] = None
        self._req: Optional[WarmingReq] = None
        self._queued_passes = 0
        # No real request came since it was launched.
        self._alone = True
        self._counted: WeakSet[Req] = WeakSet()

    # ---- input ----------------------------------------------------------

    def poll(self) -> list[WarmingStep]:
        """Deciding rank: the step to broadcast in this pass, if any."""
        planner = self.planner
        if planner is None:
            return []
        if self._req is not None:
            return self._overdue()
        if not planner.has_work() or not self._engine_is_free():
            return []
        step = planner.next_step()
        return [] if step is None else [step]

    def _overdue(self) -> list[WarmingStep]:
        if not self._is_queued():
            return []
        self._queued_passes += 1
        if self._queued_passes < PATIENCE_PASSES:
            return []
        self._queued_passes = 0
        return [WithdrawStep(self._step.name)]

    def has_work(self) -> bool:
        """Whether an idle pass should not sleep: something is to be warmed."""
        if self.planner is None or not self._may_work():
            return False
        return self._req is not None or self.planner.has_work()

    def _may_work(self) -> bool:
        scheduler = self._scheduler
        updater = scheduler.weight_updater
        return not (
            scheduler._engine_paused
            # Between begin and end of an update the weights are not usable, and
            # while memory is released there is no KV pool.
            or updater._session is not None
            or updater.offload_tags
            # It waits for an idle engine, which steps would keep busy.
            or scheduler.flush_wrapper._pending is not None
        )

    def _engine_is_free(self) -> bool:
        return self._may_work() and self._scheduler.is_fully_idle()

    def admit(self, pending: list, count: int) -> int:
        """How many of the first ``count`` pending inputs may be dispatched now.

        Runs on every rank, on the broadcast list, which it may shorten:

        * A step gives way to anything that came with it.
        * A step's request that has not been launched gives way to real requests.
        * Input that may need an idle engine (a flush, a weight update) waits for
          the launched chunk; refusing it because of a chunk nobody asked for
          would fail the caller.

        Ends the step once the engine is idle again.
        """
        self._close_ended_step()
        if count == 0:
            return 0
        batch = pending[:count]
        if len(batch) > 1 and any(isinstance(item, WarmingStep) for item in batch):
            batch = [item for item in batch if not isinstance(item, WarmingStep)]
            pending[:count] = batch
            count = len(batch)
        real = any(self._is_real_work(item) for item in batch)
        if real:
            self._alone = False
            if self.planner is not None:
                self.planner.on_traffic()
            if self._req is not None and self._is_queued():
                self._withdraw(no_room=False)
        if self._req is None:
            return count
        for position, item in enumerate(batch):
            if isinstance(item, _NO_IDLE_NEEDED) or not self._keeps_engine_busy():
                continue
            if not self._is_queued():
                return position
            self._withdraw(no_room=False)
            break
        return count

    @staticmethod
    def _is_real_work(item: Any) -> bool:
        return isinstance(item, _WORK) and not is_health_check_generate_req(item)

    # ---- dispatch, on every rank ----------------------------------------

    def handle(self, step: WarmingStep) -> None:
        """Take ``step``."""
        done = True
        if isinstance(step, PrefillStep):
            self._launch(step)
        elif isinstance(step, WithdrawStep):
            if self._req is not None and self._is_queued():
                self._withdraw(no_room=True)
        elif isinstance(step, PinStep):
            done = self._pins.pin(step.name, step.key, step.lora_id)
        elif isinstance(step, UnpinStep):
            self._pins.unpin(step.name)
        elif isinstance(step, DropStep):
            drop_prefix(self._scheduler.tree_cache, step.key)
        elif isinstance(step, HintStep):
            assert self.hints is not None, "hints are for tree mode"
            self.hints.set(step.name, step.key)
        if self.planner is not None:
            self.planner.step_taken(step, done)
            self.metrics.set_pinned(len(self._pins))

    def control(self, req: CacheWarmingReqInput) -> CacheWarmingReqOutput:
        """Answer the endpoint."""
        return control.answer(self.planner, req)

    def _launch(self, step: PrefillStep) -> None:
        self._step, self._queued_passes, self._alone = step, 0, True
        self._scheduler.handle_generate_request(
            request_input(
                step,
                serve_priority=self._serve_priority,
                prefill_instance=self._prefill_instance,
            )
        )
        if self._req is None and self.planner is not None:
            # Refused before it became a request; counted as a failed step.
            self.planner.prefill_done(step, 0.0)

    def owns(self, recv_req: Any) -> bool:
        """Whether a request input is a step's."""
        return isinstance(recv_req, WarmingReqInput)

    def make_request(self, *args: Any, **kwargs: Any) -> WarmingReq:
        """The request of the step being launched."""
        self._req = WarmingReq(*args, **kwargs)
        return self._req

    # ---- the request on its way -----------------------------------------

    def _is_queued(self) -> bool:
        return any(req is self._req for req in self._scheduler.waiting_queue)

    def _keeps_engine_busy(self) -> bool:
        """Whether the engine would be idle but for the step's request, or for what
        it left to do (a backup to the host tier)."""
        scheduler = self._scheduler
        if scheduler._engine_paused or scheduler.is_fully_idle():
            return False
        live = [*scheduler.waiting_queue, *scheduler.collect_inflight_reqs()]
        if scheduler.chunked_req is not None:
            live.append(scheduler.chunked_req)
        for batch, _ in scheduler.result_queue:
            live.extend(batch.reqs)
        if self._prefill_instance:
            live.extend(scheduler.disagg_prefill_bootstrap_queue.queue)
            live.extend(scheduler.disagg_prefill_inflight_queue)
        return all(req.is_cache_warming for req in live)

    def _withdraw(self, no_room: bool) -> None:
        scheduler = self._scheduler
        scheduler.waiting_queue = [
            req for req in scheduler.waiting_queue if req is not self._req
        ]
        scheduler._release_aborted_request(self._req)
        if self._prefill_instance:
            scheduler.release_aborted_prefill_waiting_req(self._req)
        step, self._step, self._req = self._step, None, None
        if self.planner is not None:
            self.planner.prefill_withdrawn(step, no_room)

    def _close_ended_step(self) -> None:
        if self._req is None or not self._scheduler.is_fully_idle():
            return
        req, step, self._req, self._step = self._req, self._step, None, None
        if self.planner is not None:
            ended_at = req.ended_at if req.ended_at is not None else time.monotonic()
            seconds = ended_at - req.started_at
            self.planner.prefill_done(step, seconds, alone=self._alone)

    # ---- what happens in the scheduler ----------------------------------

    def on_idle(self) -> None:
        """No batch can be made. If requests wait although nothing runs, the
        locks may be what they lack room for: they come before pinned prompts."""
        scheduler = self._scheduler
        if not len(self._pins) or not scheduler.running_batch.is_empty():
            return
        if any(not req.is_cache_warming for req in scheduler.waiting_queue):
            self.release_pins()

    def release_pins(self) -> None:
        """Give all locks up; pinned again at idle, while their time lasts."""
        names = self._pins.release()
        if names and self.planner is not None:
            logger.info("Cache warming: %d pins give way to requests", len(names))
            self.planner.on_pins_released(names)
            self.metrics.set_pinned(0)

    @property
    def has_pins(self) -> bool:
        """Whether any lock is held."""
        return len(self._pins) > 0

    def on_tree_reset(self) -> None:
        """The tree was emptied (``flush_cache``, a weight update's flush)."""
        self._pins.forget()
        if self.planner is not None:
            self.planner.on_tree_reset()
            self.metrics.set_pinned(0)

    def on_weights_kept_cache(self) -> None:
        """Weights changed and the caller asked to keep the cache."""
        self._pins.release()
        if self.planner is not None:
            self.planner.on_weights_changed()
            self.metrics.set_pinned(0)

    def on_lora_loaded(self, lora_name: str, lora_id: str) -> None:
        """An adapter was loaded, perhaps anew under another id."""
        self._adapter_changed(lora_name, self._lora_ids.loaded(lora_name, lora_id))

    def on_lora_unloaded(self, lora_id: str) -> None:
        """An adapter was unloaded."""
        if (lora_name := self._lora_ids.unloaded(lora_id)) is not None:
            self._adapter_changed(lora_name, lora_id)

    def _adapter_changed(self, lora_name: str, old_id: Optional[str]) -> None:
        if old_id is not None:
            self._pins.release(old_id)
        if self.planner is not None:
            self.planner.on_lora_changed(lora_name)
            self.metrics.set_pinned(len(self._pins))

    def on_admitted(self, reqs: list[Req]) -> None:
        """Requests enter a prefill batch: count what warmed prefixes served."""
        if self.planner is None or self.planner.index.size == 0:
            return
        for req in reqs:
            if req.is_cache_warming or req in self._counted:
                continue
            self._counted.add(req)
            if req.prefix_len:
                key = PrefixKey(req.origin_input_ids, req.extra_key, req.cache_salt)
                warmed = self.planner.index.match(key.upto(req.prefix_len))
                self.metrics.served_tokens.inc(warmed)
