# SPDX-License-Identifier: Apache-2.0
"""Records of the pages of one tree, and of those that left it.

The tree core reports splits, removals and cut tails; requests make and touch
records through ``policy.py``. Every page of the tree has a record once an insert
ended below it, and every record of a removed page becomes a ghost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from .ghosts import GhostStore
from .page_hash import namespace_base, page_hashes
from .records import CLASS_MASK, NodeRecord, RunStore, merge_equal
from .reuse_model import CLASSES, HIT_LEVELS, ReuseModel
from .touch import PER_HIT, Touch

if TYPE_CHECKING:
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import (
        UnifiedTreeCore,
        UnifiedTreeNode,
    )

# A record object, its list of runs and its array header.
NODE_BYTES = 250


class TreeRecords:
    """State by page. ``now`` is the event time, which the policy sets.

    evicted_tokens: tokens by tier (``device``, ``host``) and class. new_pages:
    pages that got their first record since the last rebuild.
    """

    def __init__(self, model: ReuseModel, page_size: int) -> None:
        self.model = model
        self.page_size = page_size
        self.now = 0.0
        self.new_pages = 0
        self.evicted_tokens: dict[str, list[int]] = {
            "device": [0] * CLASSES,
            "host": [0] * CLASSES,
        }
        self.tree: Optional[UnifiedTreeCore] = None
        self._empty(0)

    def reset(self, tree: UnifiedTreeCore, ghost_pages: int) -> None:
        """The tree was emptied: forget all pages, remember ``ghost_pages`` from now."""
        self.tree = tree
        self._empty(ghost_pages)

    def _empty(self, ghost_pages: int) -> None:
        self.store = RunStore()
        self.ghosts = GhostStore(self.store, ghost_pages, self._expire)
        self.nodes = self.resident_pages = 0

    # ---- paths ----

    def path(
        self, key: RadixKey, node_id: Optional[int]
    ) -> tuple[list[UnifiedTreeNode], int]:
        """Nodes that ``key`` covers, from the root on, and the pages covered of the last.

        ``node_id`` is a node known to lie on the path. The last node may be covered
        in part. Read only.
        """
        tree, page_size = self.tree, self.page_size
        length = len(key) // page_size * page_size
        root = tree.root_node
        nodes: list[UnifiedTreeNode] = []
        depth = 0
        node = tree._node_arena.get(node_id) if node_id is not None else None
        while node is not None and node is not root:
            nodes.append(node)
            depth += len(node.key)
            node = node.parent
        if depth > length:
            nodes.clear()
            depth = 0
        nodes.reverse()
        node = nodes[-1] if nodes else root
        covered = len(node.key) // page_size if nodes else 0
        while depth < length:
            node = node.children.get(key.child_key_at(depth, page_size))
            if node is None:
                break
            matched = node.key.match_at(key, depth, page_size=page_size)
            if not matched:
                break
            nodes.append(node)
            covered = matched // page_size
            if matched < len(node.key):
                break
            depth += matched
        return nodes, covered

    def reuse(self, runs: list[int], touch: Touch) -> None:
        """Count a reuse of each run by ``touch`` and give it its time and class."""
        store, model, now, seq = self.store, self.model, touch.time, touch.seq
        times, seqs, pages = store.time, store.seq, store.pages
        classes, lower = store.cls, store.lower
        for slot in runs:
            cls = classes[slot] & CLASS_MASK
            model.record_reuse(cls, lower[slot], now - times[slot], pages[slot])
            hits = cls // PER_HIT + 1
            classes[slot] = touch.class_of(hits if hits < HIT_LEVELS else hits - 1)
            times[slot] = now
            seqs[slot] = seq
            lower[slot] = 0

    def touched(self, nodes: list[UnifiedTreeNode], priority: int) -> None:
        """The records of ``nodes`` were touched by a request of ``priority``."""
        for node in nodes:
            record = node.reuse_record
            if len(record.runs) > 1:
                record.runs = merge_equal(self.store, record.runs)
            if priority > record.priority:
                record.priority = priority
            self.reorder(node)

    def settle(self, node: UnifiedTreeNode, touch: Touch) -> None:
        """Complete the class of what ``touch`` touched, from ``node`` upwards."""
        seqs, classes, seq = self.store.seq, self.store.cls, touch.seq
        root = self.tree.root_node
        while node is not root:
            mine = False
            for slot in node.reuse_record.runs:
                if seqs[slot] == seq:
                    classes[slot] = touch.class_of(
                        (classes[slot] & CLASS_MASK) // PER_HIT
                    )
                    mine = True
            if not mine:
                # A later request took over this node and with it all above.
                return
            self.reorder(node)
            node = node.parent

    def reorder(self, node: UnifiedTreeNode) -> None:
        """The node's place among the leaves may have changed, if it is one."""
        tree = self.tree
        if node in tree.evictable_device_leaves:
            tree.evictable_device_leaves.changed(node)
        elif node in tree.evictable_host_leaves:
            tree.evictable_host_leaves.changed(node)

    # ---- records of nodes ----

    def record_new(self, node: UnifiedTreeNode, touch: Touch) -> None:
        """Make the records that ``node`` and the nodes above it still lack."""
        if node.reuse_record is not None:
            return
        root = self.tree.root_node
        fresh = []
        while node.reuse_record is None and node is not root:
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
        # The touch has hashed the path already, unless the node is another's.
        known = touch.hashes
        first = start - touch.start
        before = touch.base if first == 0 else None
        if 0 < first <= len(known):
            before = int(known[first - 1])
        ghosts = []
        if before == base and first + count <= len(known):
            hashes = known if count == len(known) else known[first:][:count].copy()
            if start < touch.known:
                ghosts = self.ghosts.match(hashes)
        else:
            hashes = page_hashes(node.key, 0, start * page_size, base, page_size)
            ghosts = self.ghosts.match(hashes)
        runs, remembered = [], 0
        for ghost, pages in ghosts:
            self.ghosts.cut(ghost, pages)
            runs.append(self.ghosts.take(ghost))
            remembered += pages
        if remembered < count:
            pages = count - remembered
            runs.append(store.new(touch.time, touch.seq, pages, touch.class_of(0), 0))
        self.new_pages += count
        self.resident_pages += count
        self.nodes += 1
        return NodeRecord(start, base, hashes, runs, touch.priority)

    def tail_tokens(self, node: UnifiedTreeNode) -> int:
        """Tokens at the node's end that share one record, so one value."""
        return self.store.pages[node.reuse_record.runs[-1]] * self.page_size

    # ---- what the tree reports ----

    def on_split(self, head: UnifiedTreeNode, tail: UnifiedTreeNode) -> None:
        """``head`` was cut off the front of ``tail``; both keep their history."""
        if tail.reuse_record is not None:
            pages = len(head.key) // self.page_size
            head.reuse_record = tail.reuse_record.split(self.store, pages)
            self.nodes += 1

    def on_remove(self, node: UnifiedTreeNode) -> None:
        """``node`` left the tree: its records become ghosts, last page first."""
        record, node.reuse_record = node.reuse_record, None
        if record is None:
            return
        hashes, runs, end = record.hashes, record.runs, len(record.hashes)
        self.nodes -= 1
        self.resident_pages -= end
        if len(runs) == 1:
            # A view would keep what was cut off it alive.
            whole = hashes if hashes.base is None else hashes.copy()
            self.ghosts.push(runs[0], record.base, whole)
            return
        for slot in reversed(runs):
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
        hashes = record.hashes
        keep = len(hashes) - pages
        self.resident_pages -= pages
        self.ghosts.push(slot, int(hashes[keep - 1]), hashes[keep:].copy())
        # A view, until most of the array is dead: see the component's _truncate.
        whole = hashes if hashes.base is None else hashes.base
        kept = hashes[:keep]
        record.hashes = kept.copy() if 2 * keep < len(whole) else kept
        return emptied

    def on_evicted(self, node: UnifiedTreeNode, tier: str, tokens: int) -> None:
        """Count evicted tokens by class; ``tier`` is ``device`` or ``host``."""
        store, counts, left = self.store, self.evicted_tokens[tier], tokens
        for slot in node.reuse_record.runs:
            n = min(left, store.pages[slot] * self.page_size)
            counts[store.cls[slot] & CLASS_MASK] += n
            left -= n

    # ---- statistics ----

    def _expire(self, slot: int, pages: int) -> None:
        store = self.store
        age = self.now - store.time[slot]
        cls = store.cls[slot] & CLASS_MASK
        self.model.record_expiry(cls, store.lower[slot], age, pages)

    def state_bytes(self) -> int:
        """Bytes of records, hashes and ghosts."""
        return (
            self.store.state_bytes()
            + self.ghosts.state_bytes()
            + NODE_BYTES * self.nodes
            + 8 * self.resident_pages
        )
