# SPDX-License-Identifier: Apache-2.0
"""The learned policy: what a request does to the records of its path.

A request touches its path once, when it is admitted: every known page of the
path, resident or ghost, counts as a reuse at its age, and all pages get the
request's time and class. The output length completes the class when the request
finishes. Records are in ``tree_records.py``, selection is in ``class_index.py``,
the hazards are in ``reuse_model.py``.

Time is *event time*: the largest arrival time among the requests seen. Nothing
here reads a clock, so ranks that serve the same requests decide alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from sglang.srt.mem_cache.radix_cache import RadixKey

from .config import AdaptiveConfig
from .page_hash import namespace_base, page_hashes
from .reuse_model import CLASSES, ReuseModel, class_label, output_level, size_level
from .touch import Touch
from .tree_records import TreeRecords

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import (
        UnifiedTreeCore,
        UnifiedTreeNode,
    )

    from .class_index import ClassIndex
    from .records import NodeRecord


# The index is made anew after a quarter pool of new pages, but not before an eighth of
# all requests, at most this many, came since: a small pool turns over within a few
# requests, which teach too little to pay for it.
REBUILD_REQUESTS = 64


class LearnedPolicy:
    """State of the learned mode for one tree.

    Args:
        config: validated options.
        page_size: tokens a page.
        allocator: device pool; its ``size`` (tokens) sets the number of ghosts
            and the pace of the rebuilds.
    """

    def __init__(
        self, config: AdaptiveConfig, page_size: int, allocator: Any = None
    ) -> None:
        self.config = config
        self.page_size = page_size
        self._allocator = allocator
        self.model = ReuseModel()
        self.records = TreeRecords(self.model, page_size)
        self.tree: Optional[UnifiedTreeCore] = None
        # The touch that new nodes belong to: the request whose insert runs.
        self.current: Optional[Touch] = None
        self.epoch = 0
        self.mean_path = 0.0
        self.ghost_hit_tokens = 0
        self.eviction_seconds = 0.0
        # (tier, index) of the component, for the reports only.
        self.indexes: tuple[tuple[str, ClassIndex], ...] = ()
        self._seq = 0
        self._paths = self._rebuilt = 0
        self._quarter = 1

    @property
    def pool_pages(self) -> int:
        size = getattr(self._allocator, "size", None) or 4096 * self.page_size
        return max(1, size // self.page_size)

    @property
    def now(self) -> float:
        """Event time in seconds, or in requests where ages are counted in them."""
        return self.records.now

    def reset(self, tree: UnifiedTreeCore) -> None:
        """The tree was emptied: forget all pages, keep what was learned."""
        self.tree = tree
        self.epoch += 1
        self.current = None
        self._quarter = max(1, self.pool_pages // 4)
        self.records.reset(tree, int(self.config.ghost_ratio * self.pool_pages))

    # ---- requests ----

    def admit(
        self,
        key: RadixKey,
        arrival_time: Optional[float] = None,
        *,
        priority: int = 0,
        node_id: Optional[int] = None,
    ) -> Touch:
        """A request starts: touch its path, once a request.

        Args:
            key: the prompt.
            arrival_time: seconds, the same value on every rank; None leaves
                the clock where it is, and an earlier one never turns it back.
            priority: the request's priority; higher protects longer.
            node_id: deepest node that the match found; without it the path is
                walked down from the root.

        Returns:
            The touch to pass to ``finish``. Until the next ``admit``, new nodes
            are taken to be this request's.
        """
        records, page_size = self.records, self.page_size
        units = self._units(key)
        length = len(units)
        pages = length // page_size
        self._tick(arrival_time)
        self._seq += 1
        self._paths += 1
        rate = max(1.0 / self._paths, 0.002)
        self.mean_path += rate * (pages - self.mean_path)
        touch = Touch(self._seq, records.now, self.epoch, priority)

        nodes, covered = records.path(units, node_id)
        runs: list[int] = []
        touched: list[UnifiedTreeNode] = []
        known, base = 0, namespace_base(units.extra_key, units.cache_salt)
        for node in nodes:
            record = node.reuse_record
            if record is None:
                break
            touched.append(node)
            if node is nodes[-1] and covered < len(record.hashes):
                runs += record.isolate(records.store, covered)
                known, base = record.start + covered, int(record.hashes[covered - 1])
            else:
                runs += record.runs
                known, base = record.end, record.end_hash
        touch.node_id = touched[-1].id if touched else self.tree.root_node.id

        touch.start, touch.base = known, base
        if known < pages:
            at = known * page_size
            touch.hashes = page_hashes(units, at, at, base, page_size)
            for ghost, found in records.ghosts.match(touch.hashes):
                records.ghosts.cut(ghost, found)
                runs.append(ghost.slot)
                known += found
                self.ghost_hit_tokens += found * page_size
        self._know(touch, length, known)
        records.reuse(runs, touch)
        records.touched(touched, priority)
        self.current = touch
        return touch

    def catch_up(self, key: RadixKey, touch: Touch, node_id: Optional[int]) -> None:
        """The request is admitted: it also uses what was cached while it waited.

        Args:
            key: the prompt, of which ``touch`` touched what was known before.
            node_id: as in ``admit``.
        """
        records, store = self.records, self.records.store
        units = self._units(key)
        nodes, covered = records.path(units, node_id)
        known, runs, touched = touch.known, [], []
        for node in nodes:
            record = node.reuse_record
            if record is None:
                break
            pages = covered if node is nodes[-1] else len(record.hashes)
            before = touch.known - record.start
            if pages <= before:
                continue
            cut = len(record.isolate(store, before)) if before > 0 else 0
            # What a later request touched is that one's.
            found = [
                slot
                for slot in record.isolate(store, pages)[cut:]
                if store.seq[slot] < touch.seq
            ]
            known = record.start + pages
            if found:
                runs += found
                touched.append(node)
        self._know(touch, len(units), known)
        records.reuse(runs, touch)
        records.touched(touched, touch.priority)

    def _know(self, touch: Touch, length: int, pages: int) -> None:
        """The first ``pages`` pages of the prompt's ``length`` tokens are known."""
        touch.known = pages
        unknown = length - pages * self.page_size
        touch.size = size_level(-(-unknown // self.config.block_tokens))

    def finish(self, touch: Touch, output_tokens: int) -> None:
        """The request ended, or left the batch: its class is complete.

        Call it before the path is unlocked. A touch from before a reset is
        ignored. Called again after a retraction, the last length counts.
        """
        if touch.epoch != self.epoch:
            return
        touch.output = output_level(output_tokens)
        touch.final = True
        node = self.tree._node_arena.get(touch.node_id)
        if node is not None and node is not self.tree.root_node:
            self.records.record_new(node, touch)
            self.records.settle(node, touch)
        if self.records.new_pages >= self._quarter:
            since = self._paths - self._rebuilt
            if since >= REBUILD_REQUESTS or since * 8 >= self._paths:
                self._rebuild()

    def reopen(self, touch: Touch) -> bool:
        """A retracted request runs again: not a second use of its path.

        Returns False when the touch is from before a reset.
        """
        if touch.epoch != self.epoch:
            return False
        touch.final = False
        touch.output = 0
        return True

    def on_insert(self, node: UnifiedTreeNode, key: RadixKey, priority: int) -> None:
        """An insert ended on ``node``. Without an admitted request it is one."""
        if node is self.tree.root_node:
            return
        touch = self.current
        if touch is None:
            touch = self.admit(key, priority=priority, node_id=node.id)
            touch.node_id = node.id
            self.finish(touch, 0)
            self.current = None
            return
        self.records.record_new(node, touch)
        if touch.epoch != self.epoch:
            return
        # The answer is inserted before the prompt, which then ends above it.
        end = node.reuse_record.end
        if end >= touch.end or touch.node_id not in self.tree._node_arena:
            touch.node_id, touch.end = node.id, end

    def record_of(self, node: UnifiedTreeNode) -> NodeRecord:
        """The node's record; one that no request reported is made on the spot."""
        if node.reuse_record is None:
            touch = self.current
            if touch is None:
                self._seq += 1
                touch = Touch(self._seq, self.now, self.epoch, 0)
                touch.final = True
            self.records.record_new(node, touch)
        return node.reuse_record

    def _units(self, key: RadixKey) -> RadixKey:
        """The key as the tree sees it: pairs of tokens under EAGLE."""
        if not self.tree.is_eagle or key.is_bigram:
            return key
        # A copy: the view is made by a mark on the key itself.
        view = RadixKey(
            key.token_ids,
            key.extra_key,
            limit=key.limit,
            cache_salt=key.cache_salt,
        )
        return view.maybe_to_bigram_view(True)[0]

    def _tick(self, arrival_time: Optional[float]) -> None:
        if self.config.age == "requests":
            self.records.now += 1.0
        elif arrival_time is not None and arrival_time > self.records.now:
            self.records.now = arrival_time

    def _rebuild(self) -> None:
        records = self.records
        quarters = records.new_pages // self._quarter
        records.new_pages = 0
        self._rebuilt = self._paths
        records.store.advance_all(self.model, records.now)
        self.model.rebuild(max(self.mean_path, 1.0), quarters)

    # ---- reports ----

    def state_bytes(self) -> int:
        """Bytes of all state: records, hashes, ghosts, counts and index entries."""
        return (
            self.records.state_bytes()
            + self.model.state_bytes()
            + sum(index.state_bytes() for _, index in self.indexes)
        )

    def report(self) -> dict[str, Any]:
        """Counters and sizes by name; classes by label."""
        records = self.records

        def by_class(counts: list[int]) -> dict[str, int]:
            return {class_label(c): n for c, n in enumerate(counts) if n}

        return {
            "evicted_tokens": by_class(records.evicted_tokens["device"]),
            "evicted_host_tokens": by_class(records.evicted_tokens["host"]),
            "ghost_hit_tokens": self.ghost_hit_tokens,
            "reuse_probability": {
                class_label(c): self.model.reuse_probability(c)
                for c in range(CLASSES)
                if self.model.exposures[c].any()
            },
            "resident_pages": records.resident_pages,
            "ghost_pages": records.ghosts.pages,
            "runs": len(records.store),
            "index_entries": sum(len(index) for _, index in self.indexes),
            "rebuilds": self.model.rebuilds,
            "eviction_seconds": self.eviction_seconds,
            "state_bytes": self.state_bytes(),
        }
