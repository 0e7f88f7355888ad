# SPDX-License-Identifier: Apache-2.0
"""How the waiting queue changed since the last call.

Between two calls the scheduler takes requests out (admitted, aborted, timed
out) and appends new ones; PD prefill may put one back at the head. What stays
keeps its order, so the two lists agree in long runs. Runs are compared as
slices, by identity in C: a call costs some microseconds per removed request and
a few nanoseconds per waiting one.
"""

from __future__ import annotations

from typing import Collection, NamedTuple, Sequence, TypeVar

T = TypeVar("T")


class QueueDiff(NamedTuple):
    """What became of the last call's list.

    ``tail`` is what stands behind all that kept its place. Beside new requests
    it may hold some of the last call: they ran and came back between two calls
    (retracted), or were put elsewhere; these are not in ``removed``.
    """

    removed: list
    put_first: list
    tail: list


def diff_queue(
    last: Sequence[T], queue: Sequence[T], known: Collection[T]
) -> QueueDiff:
    """Split the change from ``last`` to ``queue``.

    Items are told apart by identity (they define no equality); ``known`` holds
    those of ``last`` and answers ``in`` in constant time.
    """
    to = 0  # in queue
    while to < len(queue) and queue[to] not in known:
        to += 1
    if to == len(queue):
        return QueueDiff(list(last), [], list(queue))
    put_first = list(queue[:to])
    removed: list[T] = []
    at = 0  # in last
    while at < len(last) and to < len(queue):
        run = _common_run(last, at, queue, to)
        at += run
        to += run
        if at < len(last) and to < len(queue):
            removed.append(last[at])
            at += 1
    removed.extend(last[at:])
    tail = list(queue[to:])
    came_back = {item for item in tail if item in known}
    if came_back:
        removed = [item for item in removed if item not in came_back]
    return QueueDiff(removed, put_first, tail)


def _common_run(last: Sequence[T], at: int, queue: Sequence[T], to: int) -> int:
    """Length of the run over which ``last[at:]`` and ``queue[to:]`` agree."""
    limit = min(len(last) - at, len(queue) - to)
    low = 0
    step = 1
    while low < limit:
        high = min(low + step, limit)
        if last[at + low : at + high] == queue[to + low : to + high]:
            low = high
            step *= 2
            continue
        while high - low > 1:
            middle = (low + high) // 2
            if last[at + low : at + middle] == queue[to + low : to + middle]:
                low = middle
            else:
                high = middle
        break
    return low
