# SPDX-License-Identifier: Apache-2.0
"""A serving engine without a model, in virtual time.

One pass, as the scheduler's: call the policy, admit from the head of the queue
within the token budget, the pool and the number of running requests (the last
one in chunks), prefill, insert what was computed into the tree. Decode runs
beside it: a request holds its slots for its output tokens' time. The policy's
own time is measured (processor time), not simulated.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass
from typing import Any, Iterator, Optional, Sequence

import torch
from sglang.srt.mem_cache.adaptive_eviction.request_touch import find_policy, touch_of
from sglang.srt.mem_cache.base_prefix_cache import InsertParams
from sglang.srt.mem_cache.common import match_kv_cache
from sglang.srt.mem_cache.radix_cache import RadixKey

from .jobs import COLD, Job
from .outcome import Outcome
from .world import World


@dataclass(frozen=True)
class Speed:
    """How fast the engine is; only ratios of the results depend on it weakly.

    Attributes:
        prefill_tps: prompt tokens a second.
        pass_s: fixed time of a pass.
        decode_s: time of one output token.
        budget: prompt tokens a pass computes at most (chunked prefill size).
        max_running: requests that hold slots at most.
    """

    prefill_tps: float = 20_000.0
    pass_s: float = 0.004
    decode_s: float = 0.01
    budget: int = 4096
    max_running: int = 128


@dataclass
class _Running:
    """An admitted request and what it holds."""

    req: Any
    job: Job
    arrived_s: float
    started_s: float
    done: int
    values: torch.Tensor
    lock: Any
    output_slots: torch.Tensor


class Engine:
    """Runs one world. ``keep_waiting`` and ``replay`` are the two experiments."""

    def __init__(self, world: World, speed: Speed):
        self.world = world
        self.speed = speed
        self.outcome = Outcome()
        self.now = 0.0
        self.waiting: list[Any] = []
        self._processed = 0
        self._jobs: dict[Any, tuple[Job, float]] = {}
        self._chunked: Optional[_Running] = None
        self._decoding: list[tuple[float, int, _Running]] = []
        self._count = 0
        # Under --eviction adaptive: told of admissions and ends, as a scheduler does.
        self._reuse = find_policy(world.cache)

    # ---- experiments --------------------------------------------------

    def keep_waiting(
        self,
        jobs: Iterator[Job],
        length: int,
        admissions: int,
        warm_up: int,
    ) -> Outcome:
        """Hold the queue at ``length`` requests until ``admissions`` were measured.

        The first ``warm_up`` admissions fill the cache and are not measured.
        """
        for part in (warm_up, admissions):
            self.outcome = Outcome()
            while self.outcome.admitted < part:
                while len(self.waiting) < length:
                    self._arrive(next(jobs), self.now)
                self._pass()
        return self._end()

    def replay(self, jobs: Sequence[Job]) -> Outcome:
        """Run ``jobs`` at their arrival times until all are admitted."""
        at = 0
        while at < len(jobs) or self.waiting or self._chunked is not None:
            if not self.waiting and self._chunked is None and at < len(jobs):
                self.now = max(self.now, jobs[at].arrival_s)
            while at < len(jobs) and jobs[at].arrival_s <= self.now:
                self._arrive(jobs[at], jobs[at].arrival_s)
                at += 1
            self._pass()
        return self._end()

    # ---- one pass -----------------------------------------------------

    def _arrive(self, job: Job, arrived_s: float) -> None:
        if job.prompt_tokens + job.output_tokens > self.world.allocator.size:
            self.outcome.rejected += 1
            return
        req = self.world.request(job, self._processed, arrived_s)
        self._jobs[req] = (job, arrived_s)
        self.waiting.append(req)

    def _pass(self) -> None:
        self._finish_due()
        # Processor time: the call does no I/O, and other load does not count.
        began = time.thread_time_ns()
        self.world.policy.calc_priority(self.waiting, None, processed_tokens=self._processed)
        self.outcome.calls_us.append((time.thread_time_ns() - began) / 1000)
        self.outcome.queue_lengths.append(len(self.waiting))

        computed = self._admit()
        self._processed += sum(tokens for _, tokens in computed)
        spent = self.speed.pass_s
        spent += sum(tokens for _, tokens in computed) / self.speed.prefill_tps
        if not computed and self._decoding:
            # Nothing fits before a running request ends.
            spent = max(spent, self._decoding[0][0] - self.now)
        self.now += spent
        self.outcome.virtual_s += spent
        for running, tokens in computed:
            self._store(running, tokens)

    def _admit(self) -> list[tuple[_Running, int]]:
        """Requests of this pass with the tokens each computes in it."""
        budget = self.speed.budget
        computed: list[tuple[_Running, int]] = []
        if self._chunked is not None:
            tokens = min(budget, self._left(self._chunked))
            computed.append((self._chunked, tokens))
            budget -= tokens
            if tokens == self._left(self._chunked):
                self._chunked = None
        taken: set[Any] = set()
        for req in self.waiting:
            if budget <= 0 or self._chunked is not None:
                break
            if len(self._decoding) + len(computed) >= self.speed.max_running:
                break
            running = self._start(req)
            if running is None:
                break
            taken.add(req)
            tokens = min(budget, self._left(running))
            computed.append((running, tokens))
            budget -= tokens
            if tokens < self._left(running):
                self._chunked = running
        if taken:
            self.waiting = [req for req in self.waiting if req not in taken]
        return computed

    @staticmethod
    def _left(running: _Running) -> int:
        return len(running.req.origin_input_ids) - running.done

    def _start(self, req: Any) -> Optional[_Running]:
        """Match, lock and take slots; None when the pool cannot give them."""
        cache, allocator = self.world.cache, self.world.allocator
        job, arrived_s = self._jobs[req]
        total = len(req.origin_input_ids)
        match_kv_cache(req, cache, max_prefix_len=total - 1)
        hit = req.prefix_len
        lock = cache.lock(req.last_node)
        page = self.world.page_size
        prompt_slots = -(-(total - hit) // page) * page
        output_slots = -(-job.output_tokens // page) * page
        need = prompt_slots + output_slots
        if allocator.available_size() + cache.evictable_size() < need:
            cache.unlock(lock)
            return None
        shortfall = need - allocator.available_size()
        if shortfall > 0:
            allocator.evict_to_free_tokens(cache, need)
        slots = allocator.alloc(need)
        assert slots is not None, f"{need} slots promised, {allocator.available_size()} left"
        if self._reuse is not None:
            touch_of(self._reuse, req)
            self._reuse.current = None
        del self._jobs[req]
        self._note_admission(job, arrived_s, hit, total)
        return _Running(
            req,
            job,
            arrived_s,
            self.now,
            done=hit,
            values=torch.cat(
                [cache.path_device_indices(req.last_node)[:hit], slots[: total - hit]]
            ),
            lock=lock,
            output_slots=slots[prompt_slots:],
        )

    def _note_admission(self, job: Job, arrived_s: float, hit: int, total: int) -> None:
        outcome = self.outcome
        outcome.admitted += 1
        outcome.hit_tokens += hit
        outcome.prompt_tokens += total
        self._note_wait(job, arrived_s)

    def _note_wait(self, job: Job, arrived_s: float) -> None:
        wait = self.now - arrived_s
        self.outcome.waits.append(wait)
        if job.kind == COLD:
            self.outcome.cold_waits.append(wait)

    def _store(self, running: _Running, tokens: int) -> None:
        """Insert the prompt as far as it is computed; decode when it is whole."""
        cache, req = self.world.cache, running.req
        before = running.done
        running.done += tokens
        end = running.done // self.world.page_size * self.world.page_size
        if self._reuse is not None:
            self._reuse.current = touch_of(self._reuse, req)
        result = cache.insert(
            InsertParams(
                key=RadixKey(req.origin_input_ids[:end]),
                value=running.values[:end],
                prev_prefix_len=before // self.world.page_size * self.world.page_size,
            )
        )
        cache.unlock(running.lock)
        running.lock = cache.lock(result.last_device_node)
        # Others may have stored the same tokens meanwhile: their slots stay.
        stored = cache.path_device_indices(result.last_device_node)
        running.values[: len(stored)] = stored
        if running.done == len(req.origin_input_ids):
            self._count += 1
            due = self.now + running.job.output_tokens * self.speed.decode_s
            heapq.heappush(self._decoding, (due, self._count, running))

    def _finish_due(self) -> None:
        while self._decoding and self._decoding[0][0] <= self.now:
            due, _, running = heapq.heappop(self._decoding)
            alone = (
                self.speed.pass_s
                + running.job.prompt_tokens / self.speed.prefill_tps
                + running.job.output_tokens * self.speed.decode_s
            )
            self.outcome.slowdowns.append((due - running.arrived_s) / alone)
            self._release(running)

    def _release(self, running: _Running) -> None:
        if self._reuse is not None:
            self._reuse.finish(touch_of(self._reuse, running.req), running.job.output_tokens)
            self._reuse.current = None
        self.world.cache.unlock(running.lock)
        allocator = self.world.allocator
        page = self.world.page_size
        whole = len(running.req.origin_input_ids) // page * page
        # The tail of a prompt that fills no page is not in the tree.
        for slots in (running.values[whole:], running.output_slots):
            if len(slots):
                allocator.free(slots)

    # ---- end ----------------------------------------------------------

    def _end(self) -> Outcome:
        outcome = self.outcome
        outcome.unfinished = len(self.waiting)
        for req in self.waiting:
            self._note_wait(*self._jobs[req])
        order = getattr(self.world.policy, "prefix_order", None)
        if order is not None:
            outcome.counters = {
                "matches": order.num_matches,
                **{f"stale_{cause}": n for cause, n in order.watch.counts.items()},
            }
        self._drain()
        return outcome

    def _drain(self) -> None:
        """Finish what runs and check that no lock is held and no slot is lost."""
        if self._chunked is not None:
            self._store(self._chunked, self._left(self._chunked))
            self._chunked = None
        for _, _, running in self._decoding:
            self._release(running)
        self._decoding.clear()
        cache, allocator = self.world.cache, self.world.allocator
        assert cache.protected_size() == 0, f"{cache.protected_size()} tokens locked"
        known = allocator.available_size() + cache.evictable_size()
        assert known == allocator.size, f"{allocator.size} slots, {known} known"
        cache.sanity_check()
