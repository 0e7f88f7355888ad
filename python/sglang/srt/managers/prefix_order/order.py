# SPDX-License-Identifier: Apache-2.0
"""Longest-prefix order of the waiting queue, kept from call to call.

Upstream's ``lpm`` matches and sorts the whole queue at every call and therefore
gives up (fcfs) above 128 waiting requests. Here a call matches only the new
requests and those whose match a tree change can have changed, and moves only
those inside a sorted list.

The order, lowest first: priority (if enabled); aged requests by their waiting
limit; the others by cached prefix, longest first; last the requests that wait
for a sibling (in-batch prefix caching). Ties go by arrival.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Callable, Hashable, Optional

from sglang.srt.managers.prefix_order.config import PrefixOrderConfig
from sglang.srt.managers.prefix_order.entry import Entry
from sglang.srt.managers.prefix_order.queue_diff import diff_queue
from sglang.srt.managers.prefix_order.sorted_queue import SortedQueue
from sglang.srt.managers.prefix_order.watch import MatchWatch, node_ids_of

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache, MatchResult

_AGED, _NORMAL, _WAITS_FOR_SIBLING = range(3)


class PrefixOrder:
    """The order for one scheduler.

    Args:
        tree_cache: where requests are matched. Its ``prefix_watch`` is set to
            this order's watch by ``create_prefix_order``.
        watch: tells which matches are stale.
        config: see ``PrefixOrderConfig``.
        match: ``match(req, tree_cache, token_ids)``, which adopts the match as
            the request's prefix (``mem_cache.common.match_kv_cache``).
        sibling_check: a request with at most this many cached device tokens may
            wait for a sibling; -1 switches that off.
        sibling_share: siblings share at least this many first tokens.
        full_match_limit: without ``incremental``, the queue length above which
            the order is by arrival.
        priority_sign: 1 if low priority values run first, -1 if high ones do,
            0 to ignore priorities.
        sweeping: the tree changes in ways the watch does not see (SWA or Mamba
            components, external stores): every match counts as stale at every
            call, within the budget.
    """

    def __init__(
        self,
        tree_cache: BasePrefixCache,
        watch: MatchWatch,
        config: PrefixOrderConfig,
        match: Callable[..., MatchResult],
        *,
        sibling_check: int,
        sibling_share: int,
        full_match_limit: int,
        priority_sign: int = 0,
        sweeping: bool = False,
    ):
        self.watch = watch
        self.config = config
        self.sweeping = sweeping
        # Matches run by all calls so far, and calls; for the benchmark.
        self.num_matches = 0
        self.num_calls = 0
        self._tree_cache = tree_cache
        self._match = match
        self._sibling_check = sibling_check
        self._sibling_share = sibling_share
        self._full_match_limit = full_match_limit
        self._priority_sign = priority_sign
        self._budget = config.matches_per_pass

        self._entries: dict[Req, Entry] = {}
        self._volatile: dict[int, Entry] = {}
        self._order = SortedQueue()
        self._last: list[Req] = []
        self._next_seq = 0
        self._first_seq = 0
        # Group -> arrival numbers of its members with a low match, ascending;
        # the first one runs, the others wait for it.
        self._groups: dict[Hashable, list[int]] = {}
        self._by_seq: dict[int, Entry] = {}
        # (waiting limit, arrival number) of the requests that have not aged.
        self._deadlines: list[tuple[int, int]] = []
        self._waiting_tokens = 0
        self._touch_turn = 0

    # ---- the call -----------------------------------------------------

    def sort(self, waiting_queue: list[Req], processed_tokens: int) -> None:
        """Bring ``waiting_queue`` into order, in place.

        ``processed_tokens``: prefill tokens computed so far, the clock of
        ``aging="tokens"``; requests carry its value at their arrival.
        """
        self.num_calls += 1
        clock = processed_tokens if self.config.aging == "tokens" else self.num_calls
        self._take_over(waiting_queue, clock)
        self._match_stale()
        self._age(clock)
        if not self.config.incremental and len(waiting_queue) > self._full_match_limit:
            self._last = sorted(waiting_queue, key=self._arrival_key)
        else:
            # Read again only before the next change of the order.
            self._last = self._order.requests
        waiting_queue[:] = self._last
        self._touch_first()

    def _arrival_key(self, req: Req) -> tuple[int, int]:
        entry = self._entries[req]
        return entry.priority, entry.seq

    # ---- queue membership ---------------------------------------------

    def _take_over(self, waiting_queue: list[Req], clock: int) -> None:
        diff = diff_queue(self._last, waiting_queue, self._entries)
        for req in diff.removed:
            self._drop(req)
        # A request put back at the head (prefill retry) arrives before all.
        for req in reversed(diff.put_first):
            self._first_seq -= 1
            self._add(req, self._first_seq, self._waiting_limit(req, clock, first=True))
        for req in diff.tail:
            entry = self._entries.get(req)
            if entry is not None:
                if len(entry.tokens) == len(req.origin_input_ids) + len(req.output_ids):
                    continue
                # It ran meanwhile and was retracted: a new stay.
                self._drop(req)
            self._add(req, self._next_seq, self._waiting_limit(req, clock))
            self._next_seq += 1

    def _add(self, req: Req, seq: int, deadline: Optional[int]) -> None:
        priority = (req.priority or 0) * self._priority_sign
        entry = Entry(req, seq, priority)
        if self._sibling_check >= 0 and len(entry.tokens) >= self._sibling_share:
            head = memoryview(entry.tokens)[: max(0, self._sibling_share)]
            entry.group = (entry.namespace, head.tobytes())
        if deadline is not None:
            entry.deadline = deadline
            heapq.heappush(self._deadlines, (deadline, seq))
        self._entries[req] = entry
        self._by_seq[seq] = entry
        if entry.volatile:
            self._volatile[seq] = entry
        self._waiting_tokens += entry.uncached
        self.watch.add_unmatched(entry)
        self._place(entry)

    def _waiting_limit(self, req: Req, clock: int, first: bool = False) -> Optional[int]:
        """The clock value from which ``req`` goes before those that came later."""
        if self.config.aging == "off":
            return None
        if self.config.aging == "tokens":
            # The request may have arrived some prefill batches before this call.
            start, ahead = req.arrival_processed_tokens, self._waiting_tokens
        else:
            start, ahead = clock, len(self._entries)
        if first:
            ahead = 0
        return start + self.config.aging_limit + int(self.config.aging_backlog * ahead)

    def _drop(self, req: Req) -> None:
        entry = self._entries.pop(req)
        self._waiting_tokens -= entry.uncached
        self._volatile.pop(entry.seq, None)
        self.watch.forget(entry)
        self._order.remove(entry)
        del self._by_seq[entry.seq]
        self._set_low_match(entry, False)

    # ---- matching -----------------------------------------------------

    def _match_stale(self) -> None:
        if not self.config.incremental:
            if len(self._entries) > self._full_match_limit:
                return
            budget = self._full_match_limit
            self.watch.mark_all("full")
        else:
            budget = self._budget
            if self.sweeping:
                self.watch.mark_all("sweep")
        line = (self._entries[req] for req in self._order.requests[: 2 * budget])
        batch = {entry.seq: entry for entry in self.watch.take_stale(budget, line)}
        batch.update(self._volatile)
        # By arrival: a match may split or refresh nodes, and must do so alike
        # on every rank.
        for _, entry in sorted(batch.items()):
            self._rematch(entry)

    def _rematch(self, entry: Entry) -> None:
        self.num_matches += 1
        self.watch.unfile(entry)
        req = entry.req
        before = entry.uncached
        result = self._match(req, self._tree_cache, entry.tokens)
        # The order goes by what the request would skip, the watch by where the
        # match ended, which may be further: the last token is always computed.
        entry.skips = req.num_matched_prefix_tokens
        entry.matched = req.prefix_len + req.host_hit_length
        entry.host_hit = req.host_hit_length > 0
        entry.nodes = node_ids_of(result)
        self._waiting_tokens += entry.uncached - before
        self.watch.file(entry)
        self._set_low_match(entry, req.prefix_len <= self._sibling_check)
        self._place(entry)

    # ---- siblings -----------------------------------------------------

    def _set_low_match(self, entry: Entry, low: bool) -> None:
        if entry.group is None or low == entry.low_match:
            entry.low_match = low
            return
        entry.low_match = low
        members = self._groups.setdefault(entry.group, [])
        first = members[0] if members else None
        if low:
            insort(members, entry.seq)
        else:
            members.pop(bisect_left(members, entry.seq))
        if not members:
            del self._groups[entry.group]
            return
        if members[0] != first:
            # The turn to run went from one sibling to another.
            for seq in (first, members[0]):
                if seq is not None and seq != entry.seq:
                    self._place(self._by_seq[seq])

    def _waits_for_sibling(self, entry: Entry) -> bool:
        if entry.group is None or not entry.low_match:
            return False
        if self._sibling_share <= 0:
            return True
        return self._groups[entry.group][0] != entry.seq

    # ---- aging --------------------------------------------------------

    def _age(self, clock: int) -> None:
        while self._deadlines and self._deadlines[0][0] <= clock:
            _, seq = heapq.heappop(self._deadlines)
            entry = self._by_seq.get(seq)
            if entry is not None:
                entry.aged = True
                self._place(entry)

    def _place(self, entry: Entry) -> None:
        if entry.matched is None and not entry.aged:
            # Not matched yet (budget): nothing is known, so last.
            kind, value = _WAITS_FOR_SIBLING, 0
        elif self._waits_for_sibling(entry):
            # Also when aged: its sibling has aged as well, and once that one is
            # cached this request is no longer held back.
            kind, value = _WAITS_FOR_SIBLING, 0
        elif entry.aged:
            kind, value = _AGED, entry.deadline
        else:
            kind, value = _NORMAL, -entry.skips
        self._order.place(entry, (entry.priority, kind, value, entry.seq))

    # ---- recency ------------------------------------------------------

    def _touch_first(self) -> None:
        """Refresh the recency of prefixes that are about to be used."""
