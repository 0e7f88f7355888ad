# SPDX-License-Identifier: Apache-2.0
"""Learned reuse hazards: which class of page is likely to be used again, and when.

Ages are cut into 72 bins, a quarter octave each: bin ``b`` starts at
``2 ** ((b - 16) / 4)`` and bin 0 at 0, in seconds of event time (or requests).
Pages are cut into 80 classes ``(h, n, o)``: earlier hits of the page, unknown
blocks of the request that touched it last, output length of that request.

For every class and bin the model counts page exposures ``R`` and reuses ``H``.
``rebuild`` turns them into hazards, smoothed by a product of one factor a
feature, and into the index ``G``: the best expected hits per unit of time that
a page of this class and age can still earn. The lowest ``G`` is evicted first.
The ratio is the Gittins index of the remaining lifetime (Gittins, 1979), the
cousin of LHD's hit density (Beckmann et al., NSDI 2018).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

import numpy as np

from . import native

BINS = 72
HIT_LEVELS, SIZE_LEVELS, OUTPUT_LEVELS = 4, 4, 5
CLASSES = HIT_LEVELS * SIZE_LEVELS * OUTPUT_LEVELS

EDGES = np.concatenate(([0.0], 2.0 ** ((np.arange(1, BINS + 1) - 16) / 4)))
WIDTHS = np.diff(EDGES)
START_EDGES = EDGES[:BINS]
BIN_STARTS: list[float] = START_EDGES.tolist()
BIN_ENDS = [*BIN_STARTS[1:], float("inf")]

_SIZE_BOUNDS = (2, 7, 22)
_OUTPUT_BOUNDS = (63, 127, 255, 511)
_STRIDE = BINS + 1
# Bins that share a factor are two octaves.
_SHARED = 8
_BLOCKS = BINS // _SHARED
_LEVELS = np.stack(
    np.unravel_index(np.arange(CLASSES), (HIT_LEVELS, SIZE_LEVELS, OUTPUT_LEVELS))
)
# For each feature, class and block: where its factor stands, [3, CLASSES, _BLOCKS].
_FACTOR_OF = _LEVELS[:, :, None] * _BLOCKS + np.arange(_BLOCKS)
_FACTORS = tuple(n * _BLOCKS for n in (HIT_LEVELS, SIZE_LEVELS, OUTPUT_LEVELS))
DECAY = 0.99
MAX_HAZARD = 0.999


def age_bin(age: float) -> int:
    """Bin of an age in seconds (or requests); a negative age counts as 0."""
    return bisect_right(BIN_STARTS, age) - 1 if age > 0.0 else 0


def size_level(unknown_blocks: int) -> int:
    """Level 0..3 of a request's number of unknown blocks."""
    return bisect_right(_SIZE_BOUNDS, unknown_blocks)


def output_level(output_tokens: int) -> int:
    """Level 0..4 of a request's number of output tokens."""
    return bisect_right(_OUTPUT_BOUNDS, output_tokens)


def class_label(index: int) -> str:
    """Short name of a class for metrics, e.g. ``h1n2o0``."""
    rest, output = divmod(index, OUTPUT_LEVELS)
    hits, size = divmod(rest, SIZE_LEVELS)
    return f"h{hits}n{size}o{output}"


class IndexRows(dict):
    """The index by class: ``rows[class][bin]``, expected hits per unit of time.

    Rows of classes without observations are made when first asked for.

    Args:
        hazard: ``[CLASSES, BINS]``, or None before the first rebuild: then every
            class has the row of LRU.
        classes: classes to make now.
    """

    __slots__ = ("_hazard",)
    _LRU = (1.0 / EDGES[1:]).tolist()

    def __init__(self, hazard: np.ndarray | None, classes: np.ndarray) -> None:
        super().__init__()
        self._hazard = hazard
        if hazard is not None and classes.size:
            rows = best_ratios(hazard[classes]).tolist()
            self.update(zip(classes.tolist(), rows))

    def __missing__(self, cls: int) -> list[float]:
        if self._hazard is None:
            row = self._LRU
        else:
            row = best_ratios(self._hazard[cls : cls + 1])[0].tolist()
        self[cls] = row
        return row


class ReuseModel:
    """Exposure and reuse counts, and the index ``G`` rebuilt from them.

    Counts are in pages. Every method is deterministic given the same calls, so
    ranks that see the same requests keep equal models.
    """

    def __init__(self) -> None:
        self.rebuilds = 0
        # Exposures arrive as ranges of bins, so they are kept as differences
        # and summed up at the rebuild; plain arrays make one update ~0.1 us.
        self._exposure_steps = array("d", bytes(8 * CLASSES * _STRIDE))
        self._new_reuses = array("d", bytes(8 * CLASSES * BINS))
        self.exposures = np.zeros((CLASSES, BINS))
        self.reuses = np.zeros((CLASSES, BINS))
        self._hazard: np.ndarray | None = None
        self._rows: IndexRows | None = None

    # ---- observations ----

    def record_reuse(self, cls: int, lower_bin: int, age: float, pages: int) -> None:
        """``pages`` pages, exposed from ``lower_bin`` on, were reused at ``age``."""
        b = max(age_bin(age), lower_bin)
        steps, at = self._exposure_steps, cls * _STRIDE
        steps[at + lower_bin] += pages
        steps[at + b + 1] -= pages
        self._new_reuses[cls * BINS + b] += pages

    def record_expiry(self, cls: int, lower_bin: int, age: float, pages: int) -> None:
        """``pages`` pages were forgotten at ``age`` without a reuse."""
        b = max(age_bin(age), lower_bin)
        steps, at = self._exposure_steps, cls * _STRIDE
        steps[at + lower_bin] += pages
        steps[at + b] -= 0.5 * pages
        steps[at + b + 1] -= 0.5 * pages

    def record_exposures(
        self, cls: np.ndarray, lower: np.ndarray, upper: np.ndarray, pages: np.ndarray
    ) -> None:
        """Pages that went unused from bin ``lower`` to before bin ``upper``.

        All four are 1-d arrays of one length: class, two bins, page counts.
        """
        steps = np.frombuffer(self._exposure_steps)
        size = steps.size
        at = cls.astype(np.int64) * _STRIDE
        steps += np.bincount(at + lower, weights=pages, minlength=size)
        steps -= np.bincount(at + upper, weights=pages, minlength=size)

    # ---- index ----

    @property
    def rows(self) -> IndexRows:
        """The index, a new object after each rebuild."""
        if self._rows is None:
            # When an eviction asks, not when a request ends.
            self._rows = IndexRows(self._hazard, self._observed())
        return self._rows

    def value(self, cls: int, age: float) -> float:
        """``G`` of a class at an age; the lowest is evicted first."""
        return self.rows[cls][age_bin(age)]

    def _observed(self) -> np.ndarray:
        """Classes with exposures, ascending."""
        return np.flatnonzero(self.exposures.any(axis=1))

    def reuse_probability(self, cls: int) -> float:
        """Chance that a page of this class is reused at an age seen so far."""
        if self._hazard is None:
            return 0.0
        seen = self.exposures[cls] > 0.0
        return float(1.0 - np.prod(1.0 - self._hazard[cls][seen]))

    def rebuild(self, mean_path: float, quarters: int = 1) -> None:
        """Relearn hazards; ``mean_path`` (pages) scales the priors.

        ``quarters`` is the number of quarter pools of new pages since the last time:
        for each, what was counted fades by 1 %.
        Pages of one path live and die together, so a path, not a page, is
        the unit of evidence that a prior weighs against.
        """
        self._collect()
        exposures, reuses = self.exposures, self.reuses
        overall = min(0.3, (reuses.sum() + 1) / (exposures.sum() + 10))
        weight = 4.0 * mean_path
        base = (reuses.sum(axis=0) + weight * overall) / (
            exposures.sum(axis=0) + weight
        )
        predicted = self._factored(base, weight)
        prior = 8.0 * mean_path
        self._hazard = np.minimum(
            MAX_HAZARD, (reuses + prior * predicted) / (exposures + prior)
        )
        self._rows = None
        exposures *= DECAY**quarters
        reuses *= DECAY**quarters
        self.rebuilds += 1

    def _collect(self) -> None:
        steps = np.frombuffer(self._exposure_steps).reshape(CLASSES, _STRIDE)
        self.exposures += np.cumsum(steps, axis=1)[:, :BINS]
        steps[:] = 0.0
        fresh = np.frombuffer(self._new_reuses).reshape(CLASSES, BINS)
        self.reuses += fresh
        fresh[:] = 0.0

    def _factored(self, base: np.ndarray, weight: float) -> np.ndarray:
        """Hazards ``[CLASSES, BINS]`` as base times one factor a feature level.

        Factors are shared by 8 bins (two octaves) and fitted by three rounds of
        iterative proportional scaling, each damped by ``weight`` pages. Classes
        without exposures have nothing to say in it. Sums are made by ``bincount``,
        whose order of summation is the order of the classes on every processor.
        """
        curve = base.reshape(_BLOCKS, _SHARED)
        factors = [np.ones(size) for size in _FACTORS]

        def scale(at: np.ndarray) -> np.ndarray:
            return factors[0][at[0]] * factors[1][at[1]] * factors[2][at[2]]

        def by_level(feature: int, amounts: np.ndarray) -> np.ndarray:
            size = _FACTORS[feature]
            return np.bincount(places[feature], amounts.ravel(), size) + weight

        seen = self._observed()
        at = _FACTOR_OF[:, seen]
        places = at.reshape(3, -1)
        exposures = self.exposures[seen].reshape(-1, _BLOCKS, _SHARED)
        unscaled = (curve * exposures).sum(axis=2)
        reuses = self.reuses[seen].reshape(-1, _BLOCKS, _SHARED).sum(axis=2)
        observed = [by_level(feature, reuses) for feature in range(3)]
        for _ in range(3):
            for feature in range(3):
                expected = scale(at) * unscaled
                factors[feature] *= observed[feature] / by_level(feature, expected)
        hazard = curve * scale(_FACTOR_OF)[:, :, None]
        return np.minimum(0.95, hazard).reshape(CLASSES, BINS)

    def state_bytes(self) -> int:
        """Bytes of the counts and the index."""
        # Reuses old and new, exposures, hazard, index, and the exposure steps.
        return 8 * (5 * CLASSES * BINS + CLASSES * _STRIDE)


def best_ratios(hazard: np.ndarray) -> np.ndarray:
    """Index ``G`` from hazards, both ``[classes, BINS]``.

    ``G[c, b]`` is the best ratio of expected hits to expected time over all bins
    at which to give up a page of age ``b``. The page is taken to be in the middle
    of its bin, so the first bin counts with half its width and half its hazard.
    """
    if native.kernels is not None:
        out = np.empty(hazard.shape)
        native.kernels.best_ratios(np.ascontiguousarray(hazard), WIDTHS, out)
        return out
    return _best_ratios(hazard)


def _best_ratios(hazard: np.ndarray) -> np.ndarray:
    """The same with numpy."""
    # Bins first: the shrinking slices below stay contiguous.
    z = np.ascontiguousarray(hazard.T)
    half = z / 2
    stay = 1 - z
    late = (1 - half) * WIDTHS[:, None]
    hits = half.copy()
    times = (1 - half / 2) * (WIDTHS[:, None] / 2)
    alive = 1 - half
    best = hits / times
    part = np.empty_like(z)
    for step in range(1, BINS):
        n = BINS - step
        hits, times, alive, part = hits[:n], times[:n], alive[:n], part[:n]
        np.multiply(alive, z[step:], out=part)
        hits += part
        np.multiply(alive, late[step:], out=part)
        times += part
        alive *= stay[step:]
        np.divide(hits, times, out=part)
        np.maximum(best[:n], part, out=best[:n])
    return best.T
