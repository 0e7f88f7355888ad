# SPDX-License-Identifier: Apache-2.0
"""Requests use their path from when they begin to wait, not from when they run.

A waiting request will need what is cached of its prompt. Touched only when it is
admitted, that looks like any other old entry, and goes while the request waits.
Upstream's refresh of waiting prefixes does the same for LRU. As there, not under
orders that go by the cache: they run a request while its prefix is there, and
measured better with uses counted at admission (docs/results/scheduling.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.environ import envs

from .request_touch import find_policy, has_touch, touch_of

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


def report_waiting(cache: Any, waiting_queue: list[Req]) -> None:
    """Touch the paths of the requests that came since the last call.

    Called before the queue is ordered, when they stand at its end: the work goes
    by new requests. What this misses (a request put back elsewhere) is touched at
    its admission. ``SGLANG_ENABLE_WAITING_PREFIX_REFRESH=0`` switches it off.
    """
    policy = find_policy(cache)
    if policy is None or not envs.SGLANG_ENABLE_WAITING_PREFIX_REFRESH.get():
        return
    new = []
    for req in reversed(waiting_queue):
        if has_touch(policy, req):
            break
        new.append(req)
    for req in reversed(new):
        touch_of(policy, req)
    if new:
        policy.current = None
