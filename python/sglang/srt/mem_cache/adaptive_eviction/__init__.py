# SPDX-License-Identifier: Apache-2.0
"""Adaptive eviction for the unified radix tree.

``--radix-eviction-policy adaptive``; see ``docs/eviction.md``.

A driver without a scheduler reports its requests itself::

    policy = find_policy(cache)          # None under every other policy
    match = cache.match_prefix(MatchPrefixParams(key=key))
    lock = cache.lock(match.last_device_node)
    touch = policy.admit(key, arrival_time=seconds, node_id=match.best_match_node)
    ...                                  # evict, allocate, insert
    policy.finish(touch, output_tokens)  # before the unlock
    cache.unlock(lock)

``admit`` once a request; new nodes belong to the last admitted request. An
insert that no request was admitted for counts as a request without an arrival
time. ``policy.report()`` and ``policy.state_bytes()`` give counters and sizes.
"""

from .request_touch import find_policy, report_admission
from .waiting import report_waiting

__all__ = ["find_policy", "report_admission", "report_waiting"]
