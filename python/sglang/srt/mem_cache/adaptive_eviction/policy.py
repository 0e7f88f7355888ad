# SPDX-License-Identifier: Apache-2.0
"""The learned policy: touches, records, ghosts and the age of pages.

A request touches its path once, when it is admitted: every known page of the
path, resident or ghost, counts as a reuse at its age, and all pages get the
request's time and class. The output length completes the class when the request
finishes. The tree core reports new nodes, splits and removals; selection is in
``class_index.py``, the hazards in ``reuse_model.py``.

Time is *event time*: the largest arrival time among the requests seen. Nothing
here reads a clock, so ranks that serve the same requests decide alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from sglang.srt.mem_cache.radix_cache import RadixKey

from .config import AdaptiveConfig
from .ghosts import GhostStore
from .page_hash import namespace_base, page_hashes
from .records import CLASS_MASK, NodeRecord, RunStore, merge_equal
from .reuse_model import (
    CLASSES,
    HIT_LEVELS,
    ReuseModel,
    class_label,
    output_level,
    size_level,
)
from .touch import PER_HIT, Touch

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import (
        UnifiedTreeCore,
        UnifiedTreeNode,
    )

    from .class_index import ClassIndex

# A record object, its list of runs and its array header.
NODE_BYTES = 250


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
        self.store = RunStore()
        self.ghosts = GhostStore(self.store, 0, self._expire)
        self.tree: Optional[UnifiedTreeCore] = None
        # The touch that new nodes belong to: the request whose insert runs.
        self.current: Optional[Touch] = None
        self.now = 0.0
        self.epoch = 0
        self.mean_path = 0.0
        self.evicted_tokens: dict[str, list[int]] = {
            "device": [0] * CLASSES,
            "host": [0] * CLASSES,
        }
        self.ghost_hit_tokens = 0
        self.eviction_seconds = 0.0
        # (tier, index) of the component, for the reports only.
        self.indexes: tuple[tuple[str, ClassIndex], ...] = ()
        self._nodes = 0
        self._resident_pages = 0
        self._seq = 0
        self._paths = 0
        self._new_pages = 0

    @property
    def pool_pages(self) -> int:
        size = getattr(self._allocator, "size", None) or 4096 * self.page_size
        return max(1, size // self.page_size)

    def reset(self, tree: UnifiedTreeCore) -> None:
        """The tree was emptied: forget all pages, keep what was learned."""
        self.tree = tree
        self.epoch += 1
        self.current = None
        self._nodes = self._resident_pages = 0
        self.store = RunStore()
        capacity = int(self.config.ghost_ratio * self.pool_pages)
        self.ghosts = GhostStore(self.store, capacity, self._expire)

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
        tree, page_size, store = self.tree, self.page_size, self.store
        units, _ = RadixKey(
            key.token_ids,
            key.extra_key,
            is_bigram=key.is_bigram,
            limit=key.limit,
            cache_salt=key.cache_salt,
        ).maybe_to_bigram_view(tree.is_eagle)
        length = len(units)
        units = units.page_aligned(page_size)
        self._tick(arrival_time)
        self._seq += 1
        self._note_path(len(units) // page_size)
        touch = Touch(self._seq, self.now, self.epoch, priority)

        nodes, part = self._path(units, node_id)
        runs = []
        known, base = 0, namespace_base(units.extra_key, units.cache_salt)
        touched = []
        for node in nodes:
            record = node.reuse_record
            if record is None:
                part = None
                break
            touched.append(node)
            runs += record.runs
            known, base = record.end, record.end_hash
        if part is not None:
            node, pages = part
            record = node.reuse_record
            if record is not None:
                runs += record.isolate(store, pages)
                known, base = record.start + pages, int(record.hashes[pages - 1])
                touched.append(node)
        touch.node_id = touched[-1].id if touched else tree.root_node.id

        touch.start, touch.base = known, base
        if known * page_size < len(units):
            touch.hashes = page_hashes(
                units, known * page_size, known * page_size, base, page_size
            )
            for ghost, pages in self.ghosts.match(touch.hashes):
                self.ghosts.cut(ghost, pages)
                runs.append(ghost.slot)
                known += pages
                self.ghost_hit_tokens += pages * page_size
        touch.known = known
        unknown = length - known * page_size
        touch.size = size_level(-(-unknown // self.config.block_tokens))
        self._reuse(runs, touch)
        for node in touched:
            self._touched(node, priority)
        self.current = touch
        return touch

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
            self._record_new_nodes(node, touch)
            self._settle(node, touch)
        self._maybe_rebuild()

    def reopen(self, touch: Touch) -> bool:
        """A retracted request runs again: not a second use of its path.

        Returns False when the touch is from before a reset.
        """
        if touch.epoch != self.epoch:
            return False
        touch.final = False
        touch.output = 0
        return True

    def _tick(self, arrival_time: Optional[float]) -> None:
        if self.config.age == "requests":
            self.now += 1.0
        elif arrival_time is not None and arrival_time > self.now:
            self.now = arrival_time

    def _note_path(self, pages: int) -> None:
        self._paths += 1
        rate = max(1.0 / self._paths, 0.002)
        self.mean_path += rate * (pages - self.mean_path)

    def _path(self, key: RadixKey, node_id: Optional[int]):
        """Nodes that ``key`` covers whole, and the node it ends in, if any.

        Returns ``(nodes, part)`` from the root on; ``part`` is the last node and
        the pages of it that ``key`` covers, or None. Read only.
        """
        tree, page_size = self.tree, self.page_size
        nodes: list[UnifiedTreeNode] = []
        node = tree._node_arena.get(node_id) if node_id is not None else None
        if node is not None:
            while node is not tree.root_node:
                nodes.append(node)
                node = node.parent
            nodes.reverse()
        depth = sum(len(n.key) for n in nodes)
        if depth > len(key):
            nodes, depth = [], 0
        node = nodes[-1] if nodes else tree.root_node
        while depth < len(key):
            child = node.children.get(key.child_key_at(depth, page_size))
            if child is None:
                break
            matched = child.key.match_at(key, depth, page_size=page_size)
            if matched < len(child.key):
                return nodes, (child, matched // page_size) if matched else None
            nodes.append(child)
            node = child
            depth += matched
        return nodes, None

    def _reuse(self, runs: list[int], touch: Touch) -> None:
        store, model, now = self.store, self.model, touch.time
        times, seqs, pages = store.time, store.seq, store.pages
        classes, lower = store.cls, store.lower
        for slot in runs:
            cls = classes[slot] & CLASS_MASK
            model.record_reuse(cls, lower[slot], now - times[slot], pages[slot])
            hits = cls // PER_HIT + 1
            classes[slot] = touch.class_of(min(hits, HIT_LEVELS - 1))
            times[slot] = now
            seqs[slot] = touch.seq
            lower[slot] = 0

    def _touched(self, node: UnifiedTreeNode, priority: int) -> None:
        record = node.reuse_record
        if len(record.runs) > 1:
            record.runs = merge_equal(self.store, record.runs)
        if priority > record.priority:
            record.priority = priority
        self.reorder(node)

    def _settle(self, node: UnifiedTreeNode, touch: Touch) -> None:
        store, root = self.store, self.tree.root_node
        while node is not root:
            mine = [s for s in node.reuse_record.runs if store.seq[s] == touch.seq]
            if not mine:
                # A later request took over this node and with it all above.
                return
            for slot in mine:
                hits = (store.cls[slot] & CLASS_MASK) // PER_HIT
                store.cls[slot] = touch.class_of(hits)
            self.reorder(node)
            node = node.parent

    def reorder(self, node: UnifiedTreeNode) -> None:
        """The node's place among the leaves may have changed."""
        self.tree.evictable_device_leaves.changed(node)
        self.tree.evictable_host_leaves.changed(node)

    # ---- tree ----

    def on_insert(self, node: UnifiedTreeNode, key: RadixKey, priority: int) -> None:
        """An insert ended on ``node``. Without an admitted request it is one."""
        if node is self.tree.root_node:
            return
        if self.current is None:
            touch = self.admit(key, priority=priority, node_id=node.id)
            touch.node_id = node.id
            self.finish(touch, 0)
            self.current = None
            return
        self._record_new_nodes(node, self.current)
        if self.current.epoch == self.epoch:
            self.current.node_id = node.id

    def record_of(self, node: UnifiedTreeNode) -> NodeRecord:
        """The node's record; one that no request reported is made on the spot."""
        if node.reuse_record is None:
            touch = self.current
            if touch is None:
                self._seq += 1
                touch = Touch(self._seq, self.now, self.epoch, 0)
                touch.final = True
            self._record_new_nodes(node, touch)
        return node.reuse_record

    def _record_new_nodes(self, node: UnifiedTreeNode, touch: Touch) -> None:
        fresh = []
        while node.reuse_record is None and node is not self.tree.root_node:
            fresh.append(node)
            node = node.parent
        for node in reversed(fresh):
            node.reuse_record = self._new_record(node, touch)

    def _new_record(self, node: UnifiedTreeNode, touch: Touch) -> NodeRecord:
        page_size, store = self.page_size, self.store
        above = node.parent.reuse_record
        if above is None:
            start, base = 0, namespace_base(node.key.extra_key, node.key.cache_salt)
        else:
            start, base = above.end, above.end_hash
        count = len(node.key) // page_size
        first = start - touch.start
        before = touch.base if first == 0 else None
        if 0 < first <= len(touch.hashes):
            before = int(touch.hashes[first - 1])
        ghosts = []
        if before == base and first + count <= len(touch.hashes):
            hashes = touch.hashes[first : first + count].copy()
            if start < touch.known:
                ghosts = self.ghosts.match(hashes)
        else:
            hashes = page_hashes(node.key, 0, start * page_size, base, page_size)
            ghosts = self.ghosts.match(hashes)
        runs, known = [], 0
        for ghost, pages in ghosts:
            self.ghosts.cut(ghost, pages)
            runs.append(self.ghosts.take(ghost))
            known += pages
        if known < count:
            runs.append(
                store.new(touch.time, touch.seq, count - known, touch.class_of(0), 0)
            )
        self._new_pages += count
        self._resident_pages += count
        self._nodes += 1
        return NodeRecord(start, base, hashes, runs, touch.priority)

    def on_split(self, head: UnifiedTreeNode, tail: UnifiedTreeNode) -> None:
        """``head`` was cut off the front of ``tail``; both keep their history."""
        if tail.reuse_record is not None:
            pages = len(head.key) // self.page_size
            head.reuse_record = tail.reuse_record.split(self.store, pages)
            self._nodes += 1

    def on_remove(self, node: UnifiedTreeNode) -> None:
        """``node`` left the tree: its records become ghosts, last page first."""
        record, node.reuse_record = node.reuse_record, None
        if record is None:
            return
        self._nodes -= 1
        self._resident_pages -= len(record.hashes)
        hashes, end = record.hashes, len(record.hashes)
        for slot in reversed(record.runs):
            begin = end - self.store.pages[slot]
            base = int(hashes[begin - 1]) if begin else record.base
            self.ghosts.push(slot, base, hashes[begin:end].copy())
            end = begin

    def on_truncate(self, node: UnifiedTreeNode, tokens: int) -> bool:
        """The last ``tokens`` of a leaf were dropped; they become ghosts.

        They must share the leaf's last run, see ``tail_tokens``. Returns whether
        the leaf now ends in another run.
        """
        record, store, pages = node.reuse_record, self.store, tokens // self.page_size
        slot = record.runs[-1]
        self.evicted_tokens["device"][store.cls[slot] & CLASS_MASK] += tokens
        emptied = store.pages[slot] == pages
        if emptied:
            record.runs.pop()
        else:
            store.pages[slot] -= pages
            slot = store.copy(slot, pages)
        keep = len(record.hashes) - pages
        self._resident_pages -= pages
        self.ghosts.push(
            slot, int(record.hashes[keep - 1]), record.hashes[keep:].copy()
        )
        # A view, until most of the array is dead: see the component's _truncate.
        record.hashes = record.hashes[:keep]
        if 2 * keep < record.hashes.base.size:
            record.hashes = record.hashes.copy()
        return emptied

    def on_evicted(self, node: UnifiedTreeNode, tier: str, tokens: int) -> None:
        """Count evicted tokens by class; ``tier`` is ``device`` or ``host``."""
        store, counts, left = self.store, self.evicted_tokens[tier], tokens
        for slot in self.record_of(node).runs:
            n = min(left, store.pages[slot] * self.page_size)
            counts[store.cls[slot] & CLASS_MASK] += n
            left -= n

    def tail_tokens(self, node: UnifiedTreeNode) -> int:
        """Tokens at the node's end that share one record, so one value."""
        return self.store.pages[self.record_of(node).runs[-1]] * self.page_size

    # ---- learning ----

    def _expire(self, slot: int, pages: int) -> None:
        store = self.store
        age = self.now - store.time[slot]
        cls = store.cls[slot] & CLASS_MASK
        self.model.record_expiry(cls, store.lower[slot], age, pages)

    def _maybe_rebuild(self) -> None:
        if self._new_pages >= max(1, self.pool_pages // 4):
            self._new_pages = 0
            self.store.advance_all(self.model, self.now)
            self.model.rebuild(max(self.mean_path, 1.0))

    # ---- reports ----

    def state_bytes(self) -> int:
        """Bytes of all state: records, hashes, ghosts, counts and index entries."""
        return (
            self.store.state_bytes()
            + self.ghosts.state_bytes()
            + self.model.state_bytes()
            + NODE_BYTES * self._nodes
            + 8 * self._resident_pages
            + sum(index.state_bytes() for _, index in self.indexes)
        )

    def report(self) -> dict[str, Any]:
        """Counters and sizes by name; classes by label."""

        def by_class(counts: list[int]) -> dict[str, int]:
            return {class_label(c): n for c, n in enumerate(counts) if n}

        return {
            "evicted_tokens": by_class(self.evicted_tokens["device"]),
            "evicted_host_tokens": by_class(self.evicted_tokens["host"]),
            "ghost_hit_tokens": self.ghost_hit_tokens,
            "reuse_probability": {
                class_label(c): self.model.reuse_probability(c)
                for c in range(CLASSES)
                if self.model.exposures[c].any()
            },
            "resident_pages": self._resident_pages,
            "ghost_pages": self.ghosts.pages,
            "runs": len(self.store),
            "index_entries": sum(len(index) for _, index in self.indexes),
            "rebuilds": self.model.rebuilds,
            "eviction_seconds": self.eviction_seconds,
            "state_bytes": self.state_bytes(),
        }
