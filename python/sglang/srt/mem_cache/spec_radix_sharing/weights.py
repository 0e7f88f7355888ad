# SPDX-License-Identifier: Apache-2.0
"""What a weight update means for running requests.

Upstream empties the tree after an update and refuses to while requests run or wait.
Requests that were paused in place run on, with KV of both weights; such KV reaches
the tree when they finish, and so not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler import Scheduler


def weights_changed(scheduler: Optional[Scheduler]) -> None:
    """The served weights were changed: stop sharing what holds KV of the old ones."""
    sharer = None if scheduler is None else scheduler.radix_sharer
    if sharer is None:
        return
    holders = scheduler.collect_inflight_reqs()
    if scheduler.chunked_req is not None:
        holders.add(scheduler.chunked_req)
    sharer.on_weights_changed(req for req in holders if req.kv.holds_kv)
