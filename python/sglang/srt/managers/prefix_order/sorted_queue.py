# SPDX-License-Identifier: Apache-2.0
"""The waiting requests, kept in order."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from sglang.srt.managers.prefix_order.entry import Entry, SortKey

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


class SortedQueue:
    """Requests by ascending key, in two parallel lists.

    One change costs a binary search and two moves inside flat arrays: some
    microseconds at thousands of entries, less than any linked structure here.
    ``requests`` may be read, not changed.
    """

    def __init__(self) -> None:
        self._keys: list[SortKey] = []
        self.requests: list[Req] = []

    def place(self, entry: Entry, key: SortKey) -> None:
        """Give ``entry`` the key, moving it if it was in already."""
        if entry.key == key:
            return
        if entry.key is not None:
            self.remove(entry)
        at = bisect_left(self._keys, key)
        self._keys.insert(at, key)
        self.requests.insert(at, entry.req)
        entry.key = key

    def remove(self, entry: Entry) -> None:
        at = bisect_left(self._keys, entry.key)
        assert self.requests[at] is entry.req, f"{entry.req.rid} is not at its key"
        del self._keys[at]
        del self.requests[at]
        entry.key = None
