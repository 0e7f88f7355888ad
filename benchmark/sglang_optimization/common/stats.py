# SPDX-License-Identifier: Apache-2.0
"""Percentiles, means, intervals and the clock for work that one thread does."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Sequence

# CPU time of the calling thread in ns. For work in memory it equals wall time on an
# idle machine, and does not count what other processes take on a busy one.
cpu_clock_ns = time.thread_time_ns


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile (0 to 100) with linear interpolation; NaN when empty."""
    if not 0 <= q <= 100:
        raise ValueError(f"percentile must be in [0, 100], got {q}")
    if not values:
        return math.nan
    ordered = sorted(values)
    position = (len(ordered) - 1) * q / 100
    low = math.floor(position)
    high = math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: Sequence[float]) -> float:
    """The median; NaN when empty."""
    return statistics.median(values) if values else math.nan


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; NaN when empty."""
    return statistics.fmean(values) if values else math.nan


def median_interval(values: Sequence[float], seed: int, draws: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    return grouped_median_interval([values], seed, draws)


def grouped_median_interval(
    groups: Sequence[Sequence[float]], seed: int, draws: int = 2000
) -> tuple[float, float]:
    """95 % bootstrap interval of the median of values that come in groups.

    What belongs together, such as all that one process measured, is not independent: groups
    are drawn, and then values within each.
    """
    rng = random.Random(seed)
    medians = []
    for _ in range(draws):
        drawn = [rng.choices(group, k=len(group)) for group in rng.choices(groups, k=len(groups))]
        medians.append(median([value for group in drawn for value in group]))
    return percentile(medians, 2.5), percentile(medians, 97.5)


def ratio_interval(values: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of the paired ratios ``values[i] / base[i]`` and its 95 % interval.

    Student's t on the logarithms. With one pair the interval is NaN.
    """
    from scipy.stats import t

    logs = [math.log(value / other) for value, other in zip(values, base, strict=True)]
    middle = mean(logs)
    if len(logs) < 2:
        return math.exp(middle), math.nan, math.nan
    half = float(t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)
