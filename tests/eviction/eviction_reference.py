# SPDX-License-Identifier: Apache-2.0
"""Per-page reference of the learned eviction policy, written for clarity only.

One record a page, one Python loop a step, no incremental structure: every
decision scans all pages. The production policy keeps runs of pages and heaps;
the tests drive both with the same requests and compare victims and statistics.
A page is named by its path (a tuple of page keys from the root).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

BINS = 72
CLASSES = 80


def edge(b: int) -> float:
    return 0.0 if b == 0 else 2.0 ** ((b - 16) / 4)


EDGES = [edge(b) for b in range(BINS + 1)]


def bin_of(age: float) -> int:
    b = 0
    while b + 1 < BINS and EDGES[b + 1] <= age:
        b += 1
    return b


def level(value: int, bounds: tuple[int, ...]) -> int:
    return sum(value >= bound for bound in bounds)


def class_of(hits: int, unknown: int, output: int) -> int:
    h = min(hits, 3)
    n = level(unknown, (2, 7, 22))
    o = level(output, (63, 127, 255, 511))
    return (h * 4 + n) * 5 + o


@dataclass
class Page:
    time: float
    seq: int
    hits: int
    unknown: int
    output: int
    lb: int = 0

    @property
    def cls(self) -> int:
        return class_of(self.hits, self.unknown, self.output)


@dataclass
class ReferencePolicy:
    capacity: int
    resident: dict = field(default_factory=dict)
    ghosts: OrderedDict = field(default_factory=OrderedDict)
    children: dict = field(default_factory=dict)
    now: float = -math.inf
    seq: int = 0
    inserted: int = 0
    rebuilt: int = 0
    paths: int = 0
    mean_path: float = 0.0

    def __post_init__(self):
        self.R = [[0.0] * BINS for _ in range(CLASSES)]
        self.H = [[0.0] * BINS for _ in range(CLASSES)]
        self.hazards = None
        self.known = {}

    # -- statistics ------------------------------------------------------
    def age_bin(self, page: Page) -> int:
        return bin_of(max(0.0, self.now - page.time))

    def advance(self, page: Page) -> int:
        b = self.age_bin(page)
        for i in range(page.lb, b):
            self.R[page.cls][i] += 1
        page.lb = max(page.lb, b)
        return b

    def reuse(self, page: Page) -> None:
        b = self.advance(page)
        self.R[page.cls][b] += 1
        self.H[page.cls][b] += 1

    def expire(self, page: Page) -> None:
        b = self.advance(page)
        self.R[page.cls][b] += 0.5

    # -- requests --------------------------------------------------------
    def request(self, path: tuple, arrival: float, output: int) -> tuple[int, list]:
        """Serve one request; returns (resident hits, evicted pages in order)."""
        self.now = max(self.now, arrival)
        self.seq += 1
        self.paths += 1
        rate = max(1.0 / self.paths, 0.002)
        self.mean_path += rate * (len(path) - self.mean_path)
        pages = [path[: i + 1] for i in range(len(path))]
        resident = 0
        while resident < len(pages) and pages[resident] in self.resident:
            resident += 1
        known = resident
        while known < len(pages) and pages[known] in self.ghosts:
            known += 1
        unknown = len(pages) - known
        for p in pages[:known]:
            page = self.resident.get(p) or self.ghosts[p]
            self.reuse(page)
            page.time, page.seq, page.lb = self.now, self.seq, 0
            page.hits += 1
            page.unknown, page.output = unknown, 0
        locked = set(pages)
        victims = []
        while len(self.resident) + len(pages) - resident > self.capacity:
            victim = self.victim(locked)
            if victim is None:
                break
            self.evict(victim)
            victims.append(victim)
        for p in pages[resident:]:
            if len(self.resident) >= self.capacity:
                break
            page = self.ghosts.pop(p, None)
            if page is None:
                page = Page(self.now, self.seq, 0, unknown, 0)
            self.resident[p] = page
            self.children[p[:-1]] = self.children.get(p[:-1], 0) + 1
            self.inserted += 1
        # The output length is known only now that the request is done.
        for p in pages:
            if p in self.resident and self.resident[p].seq == self.seq:
                self.resident[p].output = output
        quarter = max(1, self.capacity // 4)
        since = self.paths - self.rebuilt
        if self.inserted >= quarter and (since >= 64 or since >= self.paths / 8):
            self.rebuild(0.99 ** (self.inserted // quarter))
            self.inserted, self.rebuilt = 0, self.paths
        return resident, victims

    def victim(self, locked: set):
        ends = {}
        for p, page in self.resident.items():
            if p in locked or self.children.get(p, 0):
                continue
            oldest, newest = ends.get(page.cls, (None, None))
            if oldest is None or page.seq < self.resident[oldest].seq:
                oldest = p
            if newest is None or page.seq > self.resident[newest].seq:
                newest = p
            ends[page.cls] = (oldest, newest)
        best = None
        for cls, pair in ends.items():
            for p in pair:
                page = self.resident[p]
                key = (self.index(cls, self.age_bin(page)), page.seq, -len(p))
                if best is None or key < best[0]:
                    best = (key, p)
        return best[1] if best else None

    def evict(self, p) -> None:
        page = self.resident.pop(p)
        self.children[p[:-1]] -= 1
        self.ghosts[p] = page
        while len(self.ghosts) > 4 * self.capacity:
            _, old = self.ghosts.popitem(last=False)
            self.expire(old)

    def index(self, cls: int, b: int) -> float:
        """Best expected hits per time of a page of this class, now in bin ``b``."""
        if self.hazards is None:
            return 1.0 / EDGES[b + 1]
        if (cls, b) not in self.known:
            hit = time = best = 0.0
            survive = 1.0
            for e in range(b, BINS):
                width, risk = EDGES[e + 1] - EDGES[e], self.hazards[cls][e]
                if e == b:
                    width, risk = width / 2, risk / 2
                hit += survive * risk
                time += survive * (1 - risk / 2) * width
                survive *= 1 - risk
                best = max(best, hit / time)
            self.known[cls, b] = best
        return self.known[cls, b]

    # -- learning --------------------------------------------------------
    def rebuild(self, fade: float) -> None:
        for page in list(self.resident.values()) + list(self.ghosts.values()):
            self.advance(page)
        R, H, A = self.R, self.H, self.mean_path
        p0 = min(0.3, (sum(map(sum, H)) + 1) / (sum(map(sum, R)) + 10))
        base = [
            (sum(H[c][b] for c in range(CLASSES)) + 4 * A * p0)
            / (sum(R[c][b] for c in range(CLASSES)) + 4 * A)
            for b in range(BINS)
        ]
        levels = [(c // 20, c // 5 % 4, c % 5) for c in range(CLASSES)]
        M = [[[1.0] * 9 for _ in range(n)] for n in (4, 4, 5)]

        def predicted():
            return [
                [
                    min(
                        0.95,
                        base[b] * M[0][h][b // 8] * M[1][n][b // 8] * M[2][o][b // 8],
                    )
                    for b in range(BINS)
                ]
                for h, n, o in levels
            ]

        for _ in range(3):
            for f, count in enumerate((4, 4, 5)):
                P = predicted()
                observed = [[0.0] * 9 for _ in range(count)]
                expected = [[0.0] * 9 for _ in range(count)]
                for c in range(CLASSES):
                    level = levels[c][f]
                    for b in range(BINS):
                        observed[level][b // 8] += H[c][b]
                        expected[level][b // 8] += P[c][b] * R[c][b]
                for i in range(count):
                    for g in range(9):
                        M[f][i][g] *= (observed[i][g] + 4 * A) / (expected[i][g] + 4 * A)
        P = predicted()
        self.hazards = [
            [min(0.999, (H[c][b] + 8 * A * P[c][b]) / (R[c][b] + 8 * A)) for b in range(BINS)]
            for c in range(CLASSES)
        ]
        self.known.clear()
        for c in range(CLASSES):
            for b in range(BINS):
                R[c][b] *= fade
                H[c][b] *= fade
