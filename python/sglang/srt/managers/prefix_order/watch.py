# SPDX-License-Identifier: Apache-2.0
"""Which remembered matches a change of the tree can have changed.

The cache reports its changes (``UnifiedRadixCache.prefix_watch``), so both tree
cores are served alike. The rules:

* Insert of key K. A match of m tokens can only grow if the request agrees with
  K on the whole page after m. Requests are filed by (namespace, m, checksum of
  the tokens up to the end of that page); the insert looks K up at its own
  lengths. On a plain tree only m = the length K found in the tree can grow: a
  shorter match would already have been longer.
* Eviction of device leaf X. A match loses tokens only if it ends on X: X has no
  device child, and a split keeps the id on the lower part.
* Anything that names no node (host eviction, load-back, host insert): the
  matches with a host part. A flush: all.

A checksum collision costs one needless match, never a wrong order.
"""

from __future__ import annotations

import zlib
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, Hashable, Iterable

from sglang.srt.managers.prefix_order.entry import Entry, Namespace

if TYPE_CHECKING:
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams, InsertResult

_Bucket = dict[int, Entry]  # by arrival number: ordered alike on every rank


class MatchWatch:
    """Files entries by what their matches rest on, and collects the stale ones.

    Args:
        page_size: tokens in a page of the tree.
        is_bigram: the tree keys pairs of tokens (EAGLE), so a page ends one
            token later.
        plain: only the Full component and no host tier; see the module text.
    """

    def __init__(self, page_size: int, is_bigram: bool, plain: bool):
        self.is_bigram = is_bigram
        self._page_end = page_size + int(is_bigram)
        self._plain = plain
        self._by_node: dict[Hashable, _Bucket] = {}
        self._by_growth: dict[Namespace, dict[int, dict[int, _Bucket]]] = {}
        self._host_hits: _Bucket = {}
        self._filed: _Bucket = {}
        # Oldest first: marking a stale entry again leaves its place.
        self._stale: _Bucket = {}
        self._all_stale = False
        # Matches made stale, by cause; for tests and the benchmark.
        self.counts: Counter[str] = Counter()

    # ---- filing -------------------------------------------------------

    def file(self, entry: Entry) -> None:
        """Remember ``entry``'s match; ``matched``, ``nodes``, ``host_hit`` are set."""
        self._filed[entry.seq] = entry
        for node in entry.nodes:
            self._by_node.setdefault(node, {})[entry.seq] = entry
        if entry.host_hit:
            self._host_hits[entry.seq] = entry
        end = entry.matched + self._page_end
        if end <= len(entry.tokens):
            checksum = zlib.crc32(memoryview(entry.tokens)[:end])
            entry.growth = (entry.matched, checksum)
            lengths = self._by_growth.setdefault(entry.namespace, {})
            lengths.setdefault(entry.matched, {}).setdefault(checksum, {})[
                entry.seq
            ] = entry

    def unfile(self, entry: Entry) -> None:
        """Forget ``entry``'s match; harmless when there is none."""
        if self._filed.pop(entry.seq, None) is None:
            return
        for node in entry.nodes:
            bucket = self._by_node[node]
            del bucket[entry.seq]
            if not bucket:
                del self._by_node[node]
        entry.nodes = ()
        self._host_hits.pop(entry.seq, None)
        if entry.growth is not None:
            length, checksum = entry.growth
            lengths = self._by_growth[entry.namespace]
            bucket = lengths[length][checksum]
            del bucket[entry.seq]
            if not bucket:
                del lengths[length][checksum]
                if not lengths[length]:
                    del lengths[length]
                    if not lengths:
                        del self._by_growth[entry.namespace]
            entry.growth = None

    def forget(self, entry: Entry) -> None:
        """The request left the queue."""
        self.unfile(entry)
        self._stale.pop(entry.seq, None)

    def add_unmatched(self, entry: Entry) -> None:
        """A request without a match is stale from the start."""
        self._stale[entry.seq] = entry

    def take_stale(self, budget: int, first_in_line: Iterable[Entry]) -> list[Entry]:
        """At most ``budget`` entries to match again; they count as fresh now.

        When not all fit, half of the budget goes to the front of the line and
        the rest to those that have been stale longest, so none stays behind.
        """
        if self._all_stale:
            self._all_stale = False
            self._stale.update(self._filed)
        stale = self._stale
        if len(stale) <= budget:
            taken = list(stale.values())
            stale.clear()
            return taken
        taken = []
        for entry in first_in_line:
            if len(taken) * 2 >= budget:
                break
            if stale.pop(entry.seq, None) is not None:
                taken.append(entry)
        for seq in list(islice(stale, budget - len(taken))):
            taken.append(stale.pop(seq))
        return taken

    def next_nodes(self, count: int) -> list[Entry]:
        """For the next ``count`` nodes in turn, one entry whose match ends there."""
        entries = []
        for node in list(islice(self._by_node, count)):
            bucket = self._by_node.pop(node)
            self._by_node[node] = bucket
            entry = next(iter(bucket.values()))
            if entry.matched:
                entries.append(entry)
        return entries

    # ---- what the cache reports ---------------------------------------

    def on_insert(self, params: InsertParams, result: InsertResult) -> None:
        """``UnifiedRadixCache.insert`` finished."""
        if result.rotation_tail_declined:
            return
        key = params.key
        lengths = self._by_growth.get((key.extra_key, key.cache_salt))
        if not lengths:
            return
        if self._plain:
            found = result.prefix_len
            candidates = [found] if found in lengths else []
        else:
            # Host-only and dead nodes on K's path come back to life without
            # counting as new, so a match may end anywhere below K's length.
            candidates = sorted(lengths)
        if not candidates:
            return
        tokens = memoryview(key.raw_token_ids())
        checksum = checked = 0
        for length in candidates:
            end = length + self._page_end
            if end > len(tokens):
                break
            checksum = zlib.crc32(tokens[checked:end], checksum)
            checked = end
            bucket = lengths[length].get(checksum)
            if bucket:
                self._mark("insert", bucket)

    def on_device_leaf_evicted(self, node_id: int) -> None:
        """``node_id`` is about to lose its device value."""
        bucket = self._by_node.get(node_id)
        if bucket:
            self._mark("evict", bucket)

    def on_internal_eviction(self) -> None:
        """A component dropped state of a node the cache cannot name."""
        self.mark_all("internal")

    def on_host_change(self) -> None:
        """Host values were evicted or loaded back."""
        self._mark("host", self._host_hits)

    def on_host_insert(self) -> None:
        """A storage prefetch added host nodes; any match may have grown."""
        self.mark_all("host_insert")

    def on_reset(self) -> None:
        """The tree was flushed; node ids and lengths mean nothing any more."""
        self.mark_all("reset")

    def mark_all(self, cause: str) -> None:
        self.counts[cause] += len(self._filed)
        self._all_stale = True

    def _mark(self, cause: str, bucket: _Bucket) -> None:
        self.counts[cause] += len(bucket)
        self._stale.update(bucket)


def node_ids_of(match: Any) -> tuple[Hashable, ...]:
    """Ids of the nodes a match ends on; a session's stand-in node has none."""
    ids: dict[Hashable, None] = {}
    for node in (match.last_device_node, match.best_match_node):
        if isinstance(node, int):
            ids[node] = None
    return tuple(ids)
