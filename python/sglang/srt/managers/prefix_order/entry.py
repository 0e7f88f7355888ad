# SPDX-License-Identifier: Apache-2.0
"""What is remembered about one waiting request."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Hashable, Optional

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

# (extra_key, cache_salt): requests share cached prefixes only within one.
Namespace = tuple[Optional[str], Optional[str]]
# Totally ordered: (priority, class, value, arrival number). Lowest runs first.
SortKey = tuple[int, int, int, int]


class Entry:
    """One waiting request: its last match and its place in the order.

    ``seq`` is the arrival number in this queue. All ranks number alike, since
    they hold the same queue; it breaks every tie, so the order never depends
    on object identity or on a clock.
    """

    __slots__ = (
        "aged",
        "arrival",
        "first_skips",
        "group",
        "gone",
        "growth",
        "hinted",
        "host_hit",
        "key",
        "low_match",
        "matched",
        "namespace",
        "nodes",
        "priority",
        "put_first",
        "req",
        "seq",
        "skips",
        "tokens",
        "volatile",
    )

    def __init__(self, req: Req, seq: int, priority: int):
        self.req = req
        self.seq = seq
        self.priority = priority
        # Without output tokens the request's own array serves, uncopied.
        self.tokens: array[int] = (
            req.origin_input_ids + req.output_ids
            if req.output_ids
            else req.origin_input_ids
        )
        self.namespace: Namespace = (req.extra_key, req.cache_salt or None)
        # A streaming session's match comes from its slot and lends its record:
        # no tree change announces it, so it is matched at every call.
        session = req.session
        self.volatile = session is not None and session.streaming

        # None until the first match.
        self.matched: Optional[int] = None
        # Tokens its prefill would skip.
        self.skips = 0
        # The same at its first match.
        self.first_skips: Optional[int] = None
        # Tokens of its longest hinted prefix (--cache-warming-mode tree).
        self.hinted = 0
        # Few enough cached tokens that waiting for a sibling to be cached pays.
        self.low_match = False
        self.host_hit = False
        # Requests of one group share the prefix that makes such waiting pay.
        self.group: Optional[Hashable] = None
        # Ids of the tree nodes the match ends on.
        self.nodes: tuple[Hashable, ...] = ()
        # (matched length, checksum) that a longer match must show; see watch.py.
        self.growth: Optional[tuple[int, int]] = None

        # Clock of aging at its arrival; whether it stands before all; whether it
        # left the queue; whether it has aged.
        self.arrival = 0
        self.put_first = False
        self.gone = False
        self.aged = False
        self.key: Optional[SortKey] = None
