# SPDX-License-Identifier: Apache-2.0
"""Sums up the results of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.stats import mean, percentile

from .driver import Result


@dataclass(frozen=True)
class Summary:
    """Figures of one run over its successful requests; times in seconds.

    ``hit_ratio`` is cached prompt tokens over prompt tokens, as the clients were told.
    Percentiles are linear interpolations; they are NaN without samples.
    """

    requests: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    hit_ratio: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    ttft_mean_s: float
    itl_p50_s: float
    itl_p99_s: float
    latency_p50_s: float
    latency_p99_s: float


def summarize(results: Sequence[Result]) -> Summary:
    """Returns the figures of ``results``."""
    good = [result for result in results if result.error is None]
    prompt = sum(result.prompt_tokens for result in good)
    cached = sum(result.cached_tokens for result in good)
    ttft = [result.ttft_s for result in good if result.ttft_s is not None]
    itl = [gap for result in good for gap in result.itl_s]
    latency = [result.latency_s for result in good]
    return Summary(
        requests=len(results),
        failed=len(results) - len(good),
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=sum(result.completion_tokens for result in good),
        hit_ratio=cached / prompt if prompt else 0.0,
        ttft_p50_s=percentile(ttft, 50),
        ttft_p90_s=percentile(ttft, 90),
        ttft_p99_s=percentile(ttft, 99),
        ttft_mean_s=mean(ttft),
        itl_p50_s=percentile(itl, 50),
        itl_p99_s=percentile(itl, 99),
        latency_p50_s=percentile(latency, 50),
        latency_p99_s=percentile(latency, 99),
    )
