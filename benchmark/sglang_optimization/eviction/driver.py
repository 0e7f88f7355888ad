# SPDX-License-Identifier: Apache-2.0
"""One trace through one radix cache, step by step as the scheduler does it.

For each request, in order of arrival and one at a time:

1. ``match_prefix`` and a lock on the matched node (admission),
2. eviction through the allocator when the pool lacks room for the rest,
3. allocation, insertion of the prompt, the lock moves to the inserted node
   (end of prefill),
4. where the trace knows the answer's blocks: room and slots for them, insertion,
   and the split at the prompt's end (finish), as ``checkpoint_into_tree`` does it,
5. unlock.

A request whose blocks exceed the pool is rejected, as a server rejects it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any, Iterator, Sequence

import torch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import base as access_clock

from common import stats

from .hooks import Hooks, make_hooks
from .policies import Policy
from .pool import make_cache
from .trace import Request, Trace

# Long enough that the caches of the processor hold one policy's tree most of the time.
TURN_REQUESTS = 64


@dataclass
class Outcome:
    """What one replay measured. Blocks are tree tokens; times are CPU time in
    microseconds.

    Attributes:
        hit_blocks: prompt blocks found in the cache.
        total_blocks: prompt blocks of all requests, rejected ones included.
        hit_tokens, total_tokens: the same in tokens; partial blocks never hit.
        rejected: requests longer than the pool.
        evictions: calls that had to evict.
        evicted_blocks: blocks that left the cache.
        request_us: time in the cache for each served request.
        eviction_us: time of each call that had to evict.
        state_bytes: memory of the policy's state at the end.
        details: policy-specific counters.
    """

    hit_blocks: int = 0
    total_blocks: int = 0
    hit_tokens: int = 0
    total_tokens: int = 0
    requests: int = 0
    rejected: int = 0
    evictions: int = 0
    evicted_blocks: int = 0
    request_us: list[float] = field(default_factory=list)
    eviction_us: list[float] = field(default_factory=list)
    state_bytes: int | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def hit_ratio(self) -> float:
        """Hit blocks by prompt blocks."""
        return self.hit_blocks / self.total_blocks if self.total_blocks else 0.0

    @property
    def token_hit_ratio(self) -> float:
        """Hit tokens by prompt tokens."""
        return self.hit_tokens / self.total_tokens if self.total_tokens else 0.0

    @property
    def mean_request_us(self) -> float:
        """Mean time in the cache of a served request."""
        return stats.mean(self.request_us)

    @property
    def mean_eviction_us(self) -> float:
        """Mean time of a call that had to evict."""
        return stats.mean(self.eviction_us)


class Replay:
    """Drives one cache. ``run()`` replays a whole trace; ``serve()`` one request."""

    def __init__(self, policy: Policy, capacity: int, block_tokens: int, page_size: int):
        self.policy = policy
        self.capacity = capacity
        self.block_tokens = block_tokens
        self.page_size = page_size
        self.hooks: Hooks = make_hooks(policy, capacity, block_tokens, page_size)
        self.cache = make_cache(
            capacity=capacity,
            page_size=page_size,
            core=policy.core or "python",
            eviction_policy=policy.eviction_policy,
            eviction_policy_config=self.hooks.config() or None,
            full_component=self.hooks.full_component,
        )
        self.hooks.attach(self.cache)
        self.allocator = self.cache.token_to_kv_pool_allocator
        self.outcome = Outcome()
        self._accesses = access_clock._LAST_ACCESS_TIME_COUNTER_FLOAT

    def run(self, trace: Trace) -> Outcome:
        """Replay ``trace`` and return what was measured.

        Raises:
            AssertionError: the replay left a lock, lost slots, or broke the tree.
        """
        for request in trace.requests:
            self.serve(request)
        return self.end()

    def turn(self, requests: Sequence[Request]) -> None:
        """Serve ``requests`` while other replays wait.

        The trees of a process share a count of accesses, and some policies weigh its
        differences; so each replay goes on with its own.
        """
        access_clock._LAST_ACCESS_TIME_COUNTER_FLOAT = self._accesses
        for request in requests:
            self.serve(request)
        self._accesses = access_clock._LAST_ACCESS_TIME_COUNTER_FLOAT

    def end(self) -> Outcome:
        """What was measured, after the last request.

        Raises:
            AssertionError: as ``run``.
        """
        self.check()
        self.outcome.state_bytes = self.hooks.state_bytes(self.cache)
        self.outcome.details = self.hooks.details(self.cache)
        return self.outcome

    def serve(self, request: Request) -> int:
        """Serve one request; returns the number of prompt blocks that were hits."""
        outcome = self.outcome
        prompt = len(request.blocks) // self.page_size * self.page_size
        end = len(request.path) // self.page_size * self.page_size
        outcome.requests += 1
        prompt_tokens = request.prompt_tokens(self.block_tokens)
        outcome.total_blocks += prompt
        outcome.total_tokens += prompt_tokens
        if end > self.capacity:
            outcome.rejected += 1
            return 0
        if end == 0:
            return 0
        tokens = array("q", request.path[:end])
        began = stats.cpu_clock_ns()
        hit = self._serve(request, tokens, prompt, end)
        outcome.request_us.append((stats.cpu_clock_ns() - began) / 1000)
        outcome.hit_blocks += hit
        outcome.hit_tokens += min(hit * self.block_tokens, prompt_tokens)
        return hit

    def _serve(self, request: Request, tokens: array, prompt: int, end: int) -> int:
        cache = self.cache
        key = RadixKey(tokens[:prompt])
        match = cache.match_prefix(MatchPrefixParams(key=key))
        hit = match.device_prefix_len
        lock = cache.lock(match.last_device_node)
        handle = self.hooks.admit(cache, request, key, match)

        indices = [cache.path_device_indices(match.last_device_node)[:hit]]
        if prompt > hit:
            indices.append(self._allocate(prompt - hit))
        values = torch.cat(indices)
        result = cache.insert(
            InsertParams(key=key, value=values, prev_prefix_len=hit, priority=request.priority)
        )
        cache.unlock(lock)
        lock = cache.lock(result.last_device_node)

        if end > prompt:
            lock = self._insert_answer(request, tokens, values, prompt, lock)
        self.hooks.finish(cache, request, handle)
        cache.unlock(lock)
        return hit

    def _insert_answer(
        self,
        request: Request,
        tokens: array,
        prompt_values: torch.Tensor,
        prompt: int,
        lock: Any,
    ) -> Any:
        """Allocate and insert the answer's blocks; returns the lock that now holds."""
        cache = self.cache
        values = torch.cat([prompt_values, self._allocate(len(tokens) - prompt)])
        result = cache.insert(
            InsertParams(
                key=RadixKey(tokens),
                value=values,
                prev_prefix_len=prompt,
                inserted_len=prompt,
                priority=request.priority,
            )
        )
        if prompt:
            cache.insert(
                InsertParams(
                    key=RadixKey(tokens[:prompt]),
                    value=values[:prompt],
                    prev_prefix_len=prompt,
                    inserted_len=prompt,
                    priority=request.priority + 1,
                )
            )
        cache.unlock(lock)
        return cache.lock(result.last_device_node)

    def _allocate(self, count: int) -> torch.Tensor:
        """``count`` slots, after evicting what the pool lacks."""
        shortfall = count - self.allocator.available_size()
        if shortfall > 0:
            before = self.allocator.available_size()
            began = stats.cpu_clock_ns()
            self.allocator.evict_to_free_tokens(self.cache, count)
            self.outcome.eviction_us.append((stats.cpu_clock_ns() - began) / 1000)
            self.outcome.evictions += 1
            self.outcome.evicted_blocks += self.allocator.available_size() - before
        slots = self.allocator.alloc(count)
        assert slots is not None, (
            f"{self.policy.name} freed too little: {count} slots wanted, "
            f"{self.allocator.available_size()} available"
        )
        return slots

    def check(self) -> None:
        """Assert that no lock is held, no slot is lost, and the tree is consistent.

        Raises:
            AssertionError: with the violated condition.
        """
        cache = self.cache
        held = cache.protected_size()
        assert held == 0, f"{held} tokens are still locked"
        known = self.allocator.available_size() + cache.evictable_size()
        assert known == self.capacity, f"{self.capacity} slots, but {known} are free or evictable"
        cache.sanity_check()


def replay(
    trace: Trace,
    policy: Policy,
    capacity: int,
    page_size: int = 1,
) -> Outcome:
    """Replay ``trace`` under ``policy`` in a fresh pool of ``capacity`` blocks."""
    return Replay(policy, capacity, trace.block_tokens, page_size).run(trace)


def replay_in_turns(
    trace: Trace, policies: Sequence[Policy], capacity: int, page_size: int = 1, parts: int = 1
) -> Iterator[list[Outcome]]:
    """Replay ``trace`` under every policy, a few requests each in turn.

    A machine that slows down for a second or two then slows all policies alike, which
    keeps the ratios of their times.

    Args:
        parts: how often to tell of progress.

    Yields:
        The outcomes in the order of ``policies``, after each part; complete after the last.
    """
    replays = [Replay(policy, capacity, trace.block_tokens, page_size) for policy in policies]
    requests = trace.requests
    for part in range(parts):
        first, end = (len(requests) * edge // parts for edge in (part, part + 1))
        for start in range(first, end, TURN_REQUESTS):
            turn = requests[start : min(start + TURN_REQUESTS, end)]
            for tree in replays:
                tree.turn(turn)
        if part == parts - 1:
            for tree in replays:
                tree.end()
        yield [tree.outcome for tree in replays]


def hit_counts(
    trace: Trace, policies: Sequence[Policy], capacities: Sequence[int]
) -> dict[str, list[int]]:
    """Exact hit blocks of each policy at each capacity, for golden tests."""
    return {
        policy.name: [replay(trace, policy, size).hit_blocks for size in capacities]
        for policy in policies
    }
