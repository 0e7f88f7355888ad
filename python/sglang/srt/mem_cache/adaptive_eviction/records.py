# SPDX-License-Identifier: Apache-2.0
"""Page records, stored as runs.

One touch gives all pages of a path the same time, size and output level, so
records come in long runs of equal values. A run is a slot in five plain arrays:
scalar access from Python is cheap there, and the rebuild sees them through numpy
without a copy.
"""

from __future__ import annotations

from array import array
from typing import Optional

import numpy as np

from .reuse_model import CLASSES, START_EDGES, ReuseModel

# Added to a class while the request's output length is still unknown.
PROVISIONAL = 128
CLASS_MASK = PROVISIONAL - 1
assert CLASSES <= PROVISIONAL

RUN_BYTES = 8 + 8 + 8 + 2 + 2


class RunStore:
    """Runs of page records in arrays indexed by slot; free slots are reused.

    time: event time of the last touch. seq: number of that touch, the total
    order of touches. pages: length, 0 for a free slot. cls: class, plus
    PROVISIONAL while in flight. lower: first age bin not yet counted as exposure.
    """

    def __init__(self) -> None:
        self.time = array("d")
        self.seq = array("q")
        self.pages = array("q")
        self.cls = array("h")
        self.lower = array("h")
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self.time) - len(self._free)

    def new(self, time: float, seq: int, pages: int, cls: int, lower: int) -> int:
        """Store a run and return its slot."""
        if self._free:
            slot = self._free.pop()
            self.time[slot] = time
            self.seq[slot] = seq
            self.pages[slot] = pages
            self.cls[slot] = cls
            self.lower[slot] = lower
            return slot
        self.time.append(time)
        self.seq.append(seq)
        self.pages.append(pages)
        self.cls.append(cls)
        self.lower.append(lower)
        return len(self.time) - 1

    def copy(self, slot: int, pages: int) -> int:
        """A second run with the values of ``slot`` and its own length."""
        return self.new(
            self.time[slot], self.seq[slot], pages, self.cls[slot], self.lower[slot]
        )

    def free(self, slot: int) -> None:
        self.pages[slot] = 0
        self._free.append(slot)

    def advance_all(self, model: ReuseModel, now: float) -> None:
        """Count the exposures of all settled runs up to ``now``."""
        if not self.time:
            return
        pages = np.frombuffer(self.pages, np.int64)
        cls = np.frombuffer(self.cls, np.int16)
        lower = np.frombuffer(self.lower, np.int16)
        ages = now - np.frombuffer(self.time, np.float64)
        bins = np.searchsorted(START_EDGES, ages, side="right") - 1
        due = np.nonzero((bins > lower) & (pages > 0) & (cls < PROVISIONAL))[0]
        if due.size:
            upper = bins[due]
            model.record_exposures(cls[due], lower[due], upper, pages[due])
            lower[due] = upper

    def state_bytes(self) -> int:
        return RUN_BYTES * len(self.time) + 8 * len(self._free)


class NodeRecord:
    """Records of one tree node: its runs in path order and its page hashes.

    start: pages before the node on its path. base: hash of the page before it
    (or of the namespace). hashes: ``uint64[pages]``. priority: highest priority
    of the requests that used it. entry: its place in the victim index, which sets
    it; None when it has none.
    """

    __slots__ = ("base", "entry", "hashes", "priority", "runs", "start")

    def __init__(
        self, start: int, base: int, hashes: np.ndarray, runs: list[int], priority: int
    ) -> None:
        self.start = start
        self.base = base
        self.hashes = hashes
        self.runs = runs
        self.priority = priority
        self.entry: Optional[list] = None

    @property
    def end(self) -> int:
        """Pages of the path up to the end of the node."""
        return self.start + len(self.hashes)

    @property
    def end_hash(self) -> int:
        return int(self.hashes[-1])

    def split(self, store: RunStore, pages: int) -> NodeRecord:
        """Cut off the first ``pages`` pages and return them as a record."""
        head_runs, tail_runs, seen = [], [], 0
        for slot in self.runs:
            n = store.pages[slot]
            if seen + n <= pages:
                head_runs.append(slot)
            elif seen >= pages:
                tail_runs.append(slot)
            else:
                keep = pages - seen
                tail_runs.append(store.copy(slot, n - keep))
                store.pages[slot] = keep
                head_runs.append(slot)
            seen += n
        # Copies: a view would keep the whole array alive for a short piece.
        hashes = self.hashes
        head = NodeRecord(
            self.start, self.base, hashes[:pages].copy(), head_runs, self.priority
        )
        self.base = int(hashes[pages - 1])
        self.start += pages
        self.hashes = hashes[pages:].copy()
        self.runs = tail_runs
        return head

    def isolate(self, store: RunStore, pages: int) -> list[int]:
        """Runs that cover exactly the first ``pages`` pages, cutting one if needed."""
        seen = 0
        for i, slot in enumerate(self.runs):
            if seen == pages:
                return self.runs[:i]
            n = store.pages[slot]
            if seen + n > pages:
                keep = pages - seen
                self.runs.insert(i + 1, store.copy(slot, n - keep))
                store.pages[slot] = keep
                return self.runs[: i + 1]
            seen += n
        return list(self.runs)


def merge_equal(store: RunStore, runs: list[int]) -> list[int]:
    """Join neighbouring runs that hold equal values; returns the shorter list."""
    out = [runs[0]]
    for slot in runs[1:]:
        last = out[-1]
        if (
            store.seq[slot] == store.seq[last]
            and store.cls[slot] == store.cls[last]
            and store.lower[slot] == store.lower[last]
        ):
            store.pages[last] += store.pages[slot]
            store.free(slot)
        else:
            out.append(slot)
    return out
