# SPDX-License-Identifier: Apache-2.0
"""Ratios of paired measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev


def ratio_interval(values: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of ``values[i] / base[i]`` and its 95 % interval.

    Student's t on the logarithms. With one pair the interval is NaN.
    """
    from scipy.stats import t

    logs = [math.log(value / other) for value, other in zip(values, base, strict=True)]
    middle = fmean(logs)
    if len(logs) < 2:
        return math.exp(middle), math.nan, math.nan
    half = float(t.ppf(0.975, len(logs) - 1)) * stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)
