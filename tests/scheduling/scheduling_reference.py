# SPDX-License-Identifier: Apache-2.0
"""The order by its definition: match everything afresh, sort everything.

Written from the description in docs/scheduling.md, without the code under test.
Arrival numbers and waiting limits are kept here, from what entered the queue.
"""

from __future__ import annotations

from typing import Any, Optional

CHECK = SHARE = 32


class Reference:
    """Follows the same queue as the world and says what its order must be."""

    def __init__(
        self,
        world: Any,
        aging: str = "off",
        limit: int = 0,
        backlog: float = 1.0,
        priority_sign: int = 0,
    ):
        self.world = world
        self.aging = aging
        self.limit = limit
        self.backlog = backlog
        self.priority_sign = priority_sign
        self.arrival: dict[Any, int] = {}
        self.deadline: dict[Any, int] = {}
        self.calls = 0
        self._next = 0
        self._first = 0
        self._skips: dict[Any, int] = {}

    def entered(self, req: Any, first: bool = False) -> None:
        """``req`` was put into the queue; noted at the next call."""
        self.left(req)
        if first:
            self._first -= 1
            self.arrival[req] = self._first
        else:
            self.arrival[req] = self._next
            self._next += 1

    def left(self, req: Any) -> None:
        for table in (self.arrival, self.deadline, self._skips):
            table.pop(req, None)

    def order(self) -> list[Any]:
        """The order that the next call must produce."""
        self.calls += 1
        clock = self.world.processed if self.aging == "tokens" else self.calls
        queue = sorted(self.world.waiting, key=lambda r: self.arrival[r])
        if self.aging != "off":
            self._set_deadlines(queue, clock)
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
        self._skips = {req: skips for req, (_, skips) in truth.items()}

        def key(req: Any) -> tuple[int, ...]:
            priority = (req.priority or 0) * self.priority_sign
            deadline: Optional[int] = self.deadline.get(req)
            if req in waits:
                place = (2, 0)
            elif deadline is not None and deadline <= clock:
                place = (0, deadline)
            else:
                place = (1, -truth[req][1])
            return (priority, *place, self.arrival[req])

        return sorted(queue, key=key)

    def _set_deadlines(self, queue: list[Any], clock: int) -> None:
        """Limits of the requests that are new since the last call, by arrival.

        The work ahead of a request: what was waiting at the last call and is
        still there, by its match then, and the new ones before it, unmatched.
        """
        queue = sorted(queue, key=lambda r: (self.arrival[r] >= 0, abs(self.arrival[r])))
        ahead = sum(self._left(r) for r in queue if r in self.deadline)
        count = sum(r in self.deadline for r in queue)
        for req in queue:
            if req in self.deadline:
                continue
            if self.aging == "tokens":
                start, work = req.arrival_processed_tokens, ahead
            else:
                start, work = clock, count
            if self.arrival[req] < 0:
                work = 0  # put before all
            self.deadline[req] = start + self.limit + int(self.backlog * work)
            ahead += self._left(req)
            count += 1

    def _left(self, req: Any) -> int:
        total = len(req.origin_input_ids) + len(req.output_ids)
        return max(1, total - self._skips.get(req, 0))
