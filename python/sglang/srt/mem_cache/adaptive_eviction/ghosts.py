# SPDX-License-Identifier: Apache-2.0
"""Ghosts: the records of pages that left the tree, until they are forgotten.

A first-in first-out list of runs, found by the hash of their first page. The
last pages of a run left the tree first, so they are forgotten first.
"""

from __future__ import annotations

from typing import Callable, Iterator, Optional

import numpy as np

from .records import RunStore

# Bound on joining neighbours, so that a join never copies a long array.
_MAX_JOINED_PAGES = 4096
GHOST_BYTES = 200


class GhostRun:
    """One run: a slot of the store, the hash before it, and its page hashes."""

    __slots__ = ("base", "hashes", "newer", "older", "slot")

    def __init__(self, slot: int, base: int, hashes: np.ndarray) -> None:
        self.slot = slot
        self.base = base
        self.hashes = hashes
        self.older: Optional[GhostRun] = None
        self.newer: Optional[GhostRun] = None


class GhostStore:
    """At most ``capacity`` pages. ``on_expiry(slot, pages)`` sees what is dropped."""

    def __init__(
        self, store: RunStore, capacity: int, on_expiry: Callable[[int, int], None]
    ) -> None:
        self.capacity = capacity
        self.pages = 0
        self._store = store
        self._on_expiry = on_expiry
        self._by_first: dict[int, GhostRun] = {}
        self._oldest: Optional[GhostRun] = None
        self._newest: Optional[GhostRun] = None

    def __len__(self) -> int:
        return len(self._by_first)

    def __iter__(self) -> Iterator[GhostRun]:
        run = self._oldest
        while run is not None:
            yield run
            run = run.newer

    # ---- list ----

    def _link_after(self, run: GhostRun, older: Optional[GhostRun]) -> None:
        newer = older.newer if older is not None else self._oldest
        run.older, run.newer = older, newer
        if older is not None:
            older.newer = run
        else:
            self._oldest = run
        if newer is not None:
            newer.older = run
        else:
            self._newest = run

    def _remove(self, run: GhostRun) -> None:
        if run.older is not None:
            run.older.newer = run.newer
        else:
            self._oldest = run.newer
        if run.newer is not None:
            run.newer.older = run.older
        else:
            self._newest = run.older
        first = int(run.hashes[0])
        if self._by_first.get(first) is run:
            del self._by_first[first]
        self.pages -= len(run.hashes)

    # ---- in and out ----

    def push(self, slot: int, base: int, hashes: np.ndarray) -> None:
        """Take over ``slot``, whose pages have ``hashes``; forgets the oldest."""
        store, newest = self._store, self._newest
        count = len(hashes)
        if (
            newest is not None
            and newest.base == int(hashes[-1])
            and store.seq[newest.slot] == store.seq[slot]
            and store.cls[newest.slot] == store.cls[slot]
            and store.lower[newest.slot] == store.lower[slot]
            and len(newest.hashes) + count <= _MAX_JOINED_PAGES
        ):
            del self._by_first[int(newest.hashes[0])]
            newest.hashes = np.concatenate((hashes, newest.hashes))
            newest.base = base
            store.pages[newest.slot] += count
            store.free(slot)
            run = newest
        else:
            run = GhostRun(slot, base, hashes)
            self._link_after(run, newest)
        first = int(hashes[0])
        stale = self._by_first.get(first)
        if stale is not None:
            self._remove(stale)
            store.free(stale.slot)
        self._by_first[first] = run
        self.pages += count
        while self.pages > self.capacity:
            self._forget(self._oldest, self.pages - self.capacity)

    def _forget(self, run: GhostRun, excess: int) -> None:
        pages = len(run.hashes)
        if excess >= pages:
            self._on_expiry(run.slot, pages)
            self._remove(run)
            self._store.free(run.slot)
        else:
            self._on_expiry(run.slot, excess)
            run.hashes = run.hashes[: pages - excess].copy()
            self._store.pages[run.slot] -= excess
            self.pages -= excess

    def match(self, hashes: np.ndarray) -> list[tuple[GhostRun, int]]:
        """Ghost runs that start the path ``hashes``, each with its matched pages.

        A run in the middle may match in part: joined with one child of its last
        page, while the path goes on with another.
        """
        found, at = [], 0
        while at < len(hashes):
            run = self._by_first.get(int(hashes[at]))
            if run is None:
                break
            n = min(len(run.hashes), len(hashes) - at)
            same = run.hashes[:n] == hashes[at : at + n]
            if not same.all():
                n = int(same.argmin())
            found.append((run, n))
            at += n
        return found

    def cut(self, run: GhostRun, pages: int) -> None:
        """Cut ``run`` so that it holds its first ``pages`` pages only.

        The rest stays a ghost of its own, one step older: its pages left first.
        """
        total = len(run.hashes)
        if pages >= total:
            return
        hashes, store = run.hashes, self._store
        rest = GhostRun(
            store.copy(run.slot, total - pages),
            int(hashes[pages - 1]),
            hashes[pages:].copy(),
        )
        store.pages[run.slot] = pages
        run.hashes = hashes[:pages].copy()
        self._by_first[int(rest.hashes[0])] = rest
        self._link_after(rest, run.older)

    def take(self, run: GhostRun) -> int:
        """Remove ``run``, whose pages are resident again; returns its slot."""
        self._remove(run)
        return run.slot

    def state_bytes(self) -> int:
        return 8 * self.pages + GHOST_BYTES * len(self._by_first)
