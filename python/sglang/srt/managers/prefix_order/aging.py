# SPDX-License-Identifier: Apache-2.0
"""When a waiting request goes first.

Requests age in the order of their arrival: the oldest one that has not aged does
so when the clock reaches ``arrival + aging_limit + aging_factor * W``. W is the
wait that fcfs would have given it, kept as fcfs's virtual clock over what the
requests before it would have cost under fcfs (``fcfs_cost.py``):
``start = max(arrival, start of the one before + its cost)``, W = start - arrival.
So the longest wait stays near ``aging_factor`` times that of fcfs at any load,
without a time limit to tune. The clock is prefill tokens or policy calls, which
all ranks count alike. Work per call: one step for each request that left or aged.
"""

from __future__ import annotations

from collections import deque

from sglang.srt.managers.prefix_order.entry import Entry
from sglang.srt.managers.prefix_order.fcfs_cost import FcfsCosts


class Aging:
    """Follows arrivals and departures; says which requests have aged.

    Args:
        limit: fixed part of the waiting limit, in units of the clock.
        factor: how many times its fcfs wait a request may wait; 0 for a clock
            in which costs are not counted.
        capacity: tokens that the prefix cache holds.
    """

    def __init__(self, limit: int, factor: float, capacity: int):
        self._limit = limit
        self._factor = factor
        self._costs = FcfsCosts(capacity)
        # By arrival; a request that left stays until all before it left or aged.
        self._line: deque[Entry] = deque()
        # When fcfs would start the first one in line.
        self._fcfs_clock = 0

    def arrived(self, entry: Entry, first: bool = False) -> None:
        """``entry.arrival`` is set; ``first``: it was put before all others."""
        if first:
            self._line.appendleft(entry)
        else:
            self._line.append(entry)

    def advance(self, clock: int) -> list[Entry]:
        """The waiting requests that age now, oldest first."""
        aged = []
        while self._line:
            entry = self._line[0]
            start = max(self._fcfs_clock, entry.arrival)
            if not entry.gone:
                wait = 0 if entry.put_first else start - entry.arrival
                if clock < entry.arrival + self._limit + int(self._factor * wait):
                    break
                entry.aged = True
                aged.append(entry)
            self._line.popleft()
            cost = self._costs.next_cost(entry, ahead=start - entry.arrival)
            self._fcfs_clock = start + cost
        return aged
