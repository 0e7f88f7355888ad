# SPDX-License-Identifier: Apache-2.0
"""The order by its definition: match everything afresh, sort everything.

Written from the description in docs/scheduling.md.
Arrivals, costs and who has aged are kept here, from what entered the queue.
"""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

from sglang.srt.managers.prefix_order.fcfs_cost import FcfsCosts

CHECK = SHARE = 32


class Reference:
    """Follows the same queue as the world and says what its order must be."""

    def __init__(
        self,
        world: Any,
        aging: str = "off",
        limit: int = 0,
        factor: float = 1.25,
        priority_sign: int = 0,
    ):
        self.world = world
        self.aging = aging
        self.limit = limit
        self.factor = factor if aging == "tokens" else 0.0
        self.priority_sign = priority_sign
        self.arrival: dict[Any, int] = {}
        self.aged: set[Any] = set()
        # Stays by arrival: [request, number, clock, left?, tokens, skips at first].
        self.stays: list[list[Any]] = []
        self._entering: list[tuple[Any, bool]] = []
        self._passed = 0
        self.calls = 0
        self._next = 0
        self._first = 0
        # Hinted prefixes by name: (extra key with the adapter, salt, tokens).
        self.hints: dict[str, tuple[Any, Any, list[int]]] = {}

    def hinted(self, req: Any) -> int:
        """Longest common prefix of the prompt with a hint of its namespace."""
        longest = 0
        for extra_key, salt, tokens in self.hints.values():
            if (extra_key, salt) != (req.extra_key, req.cache_salt or None):
                continue
            common = 0
            for ours, theirs in zip(req.origin_input_ids, tokens, strict=False):
                if ours != theirs:
                    break
                common += 1
            longest = max(longest, common)
        return min(longest, len(req.origin_input_ids) - 1)

    def entered(self, req: Any, first: bool = False) -> None:
        """``req`` was put into the queue; it stays until ``left``."""
        self.left(req)
        self._entering.append((req, first))

    def left(self, req: Any) -> None:
        self._entering = [pair for pair in self._entering if pair[0] is not req]
        for stay in self.stays:
            if stay[0] is req and not stay[3]:
                stay[3] = True
        self.aged.discard(req)
        self.arrival.pop(req, None)

    def _enter_all(self, clock: int) -> None:
        for req, first in self._entering:
            number = self._first - 1 if first else self._next
            if first:
                self._first -= 1
            else:
                self._next += 1
            self.arrival[req] = number
            since = req.arrival_processed_tokens if self.aging == "tokens" else clock
            # Before all whose turn has not come yet, or behind all.
            at = self._passed if first else len(self.stays)
            tokens = list(req.origin_input_ids + req.output_ids)
            self.stays.insert(at, [req, number, since, False, tokens, None])
        self._entering = []

    def order(self) -> list[Any]:
        """The order that the next call must produce."""
        self.calls += 1
        clock = self.world.processed if self.aging == "tokens" else self.calls
        self._enter_all(clock)
        queue = sorted(self.world.waiting, key=lambda r: self.arrival[r])
        truth = {req: self.world.matched(req) for req in queue}
        seen: set[Any] = set()
        waits: set[Any] = set()
        for req in queue:
            tokens = tuple((req.origin_input_ids + req.output_ids)[:SHARE])
            if truth[req][0] <= CHECK and len(tokens) == SHARE:
                group = (req.extra_key, req.cache_salt, tokens)
                if group in seen:
                    waits.add(req)
                seen.add(group)
        for stay in self.stays:
            if stay[5] is None and not stay[3]:
                stay[5] = truth[stay[0]][1]
        if self.aging != "off":
            self._age(clock)

        def key(req: Any) -> tuple[int, ...]:
            priority = (req.priority or 0) * self.priority_sign
            if req in waits:
                place = (2, 0)
            elif req in self.aged:
                place = (0, 0)
            else:
                place = (1, -max(truth[req][1], self.hinted(req)))
            return (priority, *place, self.arrival[req])

        return sorted(queue, key=key)

    def _age(self, clock: int) -> None:
        """Replay fcfs over all stays, by arrival, and age up to the first that may not.

        What a request costs under fcfs is an estimate with tests of its own.
        """
        fcfs = 0
        costs = FcfsCosts(self.world.capacity)
        for index, (req, number, since, gone, tokens, skips) in enumerate(self.stays):
            start = max(fcfs, since)
            if not gone and req not in self.aged:
                wait = 0 if number < 0 else start - since
                if clock < since + self.limit + int(self.factor * wait):
                    self._passed = index
                    return
                self.aged.add(req)
            stay = SimpleNamespace(
                tokens=array("q", tokens),
                first_skips=skips,
                namespace=(req.extra_key, req.cache_salt or None),
            )
            fcfs = start + costs.next_cost(stay, ahead=start - since)
        self._passed = len(self.stays)
