# SPDX-License-Identifier: Apache-2.0
"""What the scheduler reports about requests.

The touch of a request lives on the request, so it goes when the request goes:
aborted in the queue, retracted, or finished.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.radix_cache import RadixKey

    from .policy import LearnedPolicy, Touch

_ATTRIBUTE = "_reuse_touch"


def find_policy(cache: Any) -> Optional[LearnedPolicy]:
    """The learned policy of a tree cache, or None when it runs another policy."""
    component = (getattr(cache, "components", None) or {}).get(ComponentType.FULL)
    return getattr(component, "reuse_policy", None)


def report_admission(cache: Any, req: Req) -> None:
    """The scheduler committed ``req`` to a batch; chunks count once."""
    policy = find_policy(cache)
    if policy is None:
        return
    waited = has_touch(policy, req)
    touch = touch_of(policy, req)
    if waited and not touch.admitted:
        policy.catch_up(_key_of(req), touch, _node_of(req))
    touch.admitted = True
    policy.current = None


def has_touch(policy: LearnedPolicy, req: Req) -> bool:
    """Whether the request touched its path, since the last flush."""
    touch = getattr(req, _ATTRIBUTE, None)
    return touch is not None and touch.epoch == policy.epoch


def touch_of(policy: LearnedPolicy, req: Req) -> Touch:
    """The touch of a request, made now if nothing reported its admission."""
    touch = getattr(req, _ATTRIBUTE, None)
    if touch is not None:
        if not touch.final and touch.epoch == policy.epoch:
            return touch
        # Retracted and running again, unless a flush came between.
        if policy.reopen(touch):
            return touch
    touch = policy.admit(
        _key_of(req),
        arrival_of(req),
        priority=req.priority or 0,
        node_id=_node_of(req),
    )
    setattr(req, _ATTRIBUTE, touch)
    return touch


def _key_of(req: Req) -> RadixKey:
    # radix_cache imports the module that lists the policies, hence this package.
    from sglang.srt.mem_cache.radix_cache import RadixKey

    return RadixKey(
        req.full_untruncated_fill_ids or req.origin_input_ids + req.output_ids,
        req.extra_key,
        cache_salt=req.cache_salt,
    )


def _node_of(req: Req) -> Optional[int]:
    """The deepest node that the scheduler's match found, if it is known."""
    node_id = getattr(req, "best_match_node", None)
    return node_id if isinstance(node_id, int) else None


def arrival_of(req: Req) -> Optional[float]:
    """Arrival time in seconds that all ranks received with the request, or None."""
    return getattr(req.time_stats, "arrival_s", None)


def request_finished(policy: LearnedPolicy, req: Req) -> None:
    """The request gave its row back: finished, aborted or retracted."""
    touch = getattr(req, _ATTRIBUTE, None)
    if touch is not None:
        policy.finish(touch, len(req.output_ids))
