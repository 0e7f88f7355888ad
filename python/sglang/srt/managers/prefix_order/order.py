# SPDX-License-Identifier: Apache-2.0
"""Longest-prefix order of the waiting queue, kept from call to call.

Upstream's ``lpm`` matches and sorts the whole queue at every call and therefore
gives up (fcfs) above 128 waiting requests. Here a call matches only the new
requests and those whose match a tree change can have changed, and moves only
those inside a sorted list.

The order, lowest first: priority (if enabled); aged requests; the others by
cached or hinted prefix, longest first; last the requests that wait for a sibling
(in-batch prefix caching). Ties, and aged requests among themselves, go by arrival.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Callable, Hashable, Optional, Protocol

from sglang.srt.managers.prefix_order.aging import Aging
from sglang.srt.managers.prefix_order.config import PrefixOrderConfig
from sglang.srt.managers.prefix_order.entry import Entry
from sglang.srt.managers.prefix_order.queue_diff import diff_queue
from sglang.srt.managers.prefix_order.sorted_queue import SortedQueue
from sglang.srt.managers.prefix_order.watch import MatchWatch, node_ids_of
from sglang.srt.mem_cache.radix_cache import RadixKey

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache, MatchResult


class Hints(Protocol):
    """Prefixes that count as cached for the order, though their KV is not there."""

    # Changes whenever the set of hinted prefixes does.
    version: int

    def hinted_tokens(self, req: Req) -> int:
        """Length of the longest hinted prefix of the request's prompt."""


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
        capacity: tokens that the device pool holds.
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
        capacity: int,
        priority_sign: int = 0,
        sweeping: bool = False,
    ):
        self.watch = watch
        self.config = config
        self.sweeping = sweeping
        # Set with --cache-warming-mode tree.
        self.hints: Optional[Hints] = None
        self._hints_version = 0
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
        # A bigram key of n units spans n + 1 tokens.
        self._boundary_tokens = int(watch.is_bigram)

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
        self._aging = None
        if config.aging != "off":
            # A pass says nothing about costs, so there fcfs's wait is unknown.
            factor = config.aging_factor if config.aging == "tokens" else 0.0
            self._aging = Aging(config.aging_limit, factor, capacity)

    # ---- the call -----------------------------------------------------

    def sort(self, waiting_queue: list[Req], processed_tokens: int) -> None:
        """Bring ``waiting_queue`` into order, in place.

        ``processed_tokens``: prefill tokens computed so far, the clock of
        ``aging="tokens"``; requests carry its value at their arrival.
        """
        self.num_calls += 1
        hints_changed = self._note_hints()
        self._take_over(waiting_queue)
        if hints_changed:
            self._hint_all()
        self._match_stale()
        if self._aging is not None:
            clock = (
                processed_tokens if self.config.aging == "tokens" else self.num_calls
            )
            for entry in self._aging.advance(clock):
                self._place(entry)
        if not self.config.incremental and len(waiting_queue) > self._full_match_limit:
            self._last = sorted(waiting_queue, key=self._arrival_key)
        else:
            # Read again only before the next change of the order.
            self._last = self._order.requests
        waiting_queue[:] = self._last
        self._touch_some()

    def _arrival_key(self, req: Req) -> tuple[int, int]:
        entry = self._entries[req]
        return entry.priority, entry.seq

    # ---- queue membership ---------------------------------------------

    def _take_over(self, waiting_queue: list[Req]) -> None:
        diff = diff_queue(self._last, waiting_queue, self._entries)
        for req in diff.removed:
            self._drop(req)
        # A request put back at the head (prefill retry) arrives before all.
        for req in reversed(diff.put_first):
            self._first_seq -= 1
            self._add(req, self._first_seq, put_first=True)
        for req in diff.tail:
            entry = self._entries.get(req)
            if entry is not None:
                if len(entry.tokens) == len(req.origin_input_ids) + len(req.output_ids):
                    continue
                # It ran meanwhile and was retracted: a new stay.
                self._drop(req)
            self._add(req, self._next_seq)
            self._next_seq += 1

    def _add(self, req: Req, seq: int, put_first: bool = False) -> None:
        priority = (req.priority or 0) * self._priority_sign
        entry = Entry(req, seq, priority)
        if self._sibling_check >= 0 and len(entry.tokens) >= self._sibling_share:
            head = memoryview(entry.tokens)[: max(0, self._sibling_share)]
            entry.group = (entry.namespace, head.tobytes())
        entry.put_first = put_first
        if self._aging is not None:
            # The request may have arrived some prefill batches before this call.
            entry.arrival = (
                req.arrival_processed_tokens
                if self.config.aging == "tokens"
                else self.num_calls
            )
            self._aging.arrived(entry, put_first)
        if self.hints is not None:
            entry.hinted = self.hints.hinted_tokens(req)
        self._entries[req] = entry
        self._by_seq[seq] = entry
        if entry.volatile:
            self._volatile[seq] = entry
        self.watch.add_unmatched(entry)
        self._place(entry)

    def _drop(self, req: Req) -> None:
        entry = self._entries.pop(req)
        entry.gone = True
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
        result = self._match(req, self._tree_cache, entry.tokens)
        # The order goes by what the request would skip, the watch by where the
        # match ended, which may be further: the last token is always computed.
        entry.skips = req.num_matched_prefix_tokens
        if entry.first_skips is None:
            entry.first_skips = entry.skips
        entry.matched = req.prefix_len + req.host_hit_length
        entry.host_hit = req.host_hit_length > 0
        entry.nodes = node_ids_of(result)
        self.watch.file(entry)
        self._set_low_match(entry, req.prefix_len <= self._sibling_check)
        self._place(entry)

    # ---- hints --------------------------------------------------------

    def _note_hints(self) -> bool:
        version = 0 if self.hints is None else self.hints.version
        if version == self._hints_version:
            return False
        self._hints_version = version
        return True

    def _hint_all(self) -> None:
        """Hints are set while the engine is idle, so the queue is short here."""
        for req, entry in self._entries.items():
            entry.hinted = 0 if self.hints is None else self.hints.hinted_tokens(req)
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

    # ---- place in the order -------------------------------------------

    def _place(self, entry: Entry) -> None:
        if entry.matched is None and not entry.aged:
            # Not matched yet (budget): nothing is known, so last.
            kind, value = _WAITS_FOR_SIBLING, 0
        elif self._waits_for_sibling(entry):
            # Also when aged: its sibling has aged as well, and once that one is
            # cached this request is no longer held back.
            kind, value = _WAITS_FOR_SIBLING, 0
        elif entry.aged:
            kind, value = _AGED, 0
        else:
            kind, value = _NORMAL, -max(entry.skips, entry.hinted)
        self._order.place(entry, (entry.priority, kind, value, entry.seq))

    # ---- recency ------------------------------------------------------

    def _touch_some(self) -> None:
        """Refresh the recency of some prefixes that waiting requests rest on.

        Matching everything at every call, as upstream does, keeps all of them
        from being evicted before they are used; taking turns does so as well.
        """
        for entry in self.watch.next_nodes(self.config.touches_per_pass):
            req = entry.req
            self._tree_cache.touch_prefix(
                RadixKey(
                    entry.tokens,
                    req.extra_key,
                    limit=entry.matched + self._boundary_tokens,
                    cache_salt=req.cache_salt,
                )
            )
