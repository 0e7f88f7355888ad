# SPDX-License-Identifier: Apache-2.0
"""Percentiles, means and the clock for work that one thread does."""

from __future__ import annotations

import math
import statistics
import time
from typing import Sequence

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
