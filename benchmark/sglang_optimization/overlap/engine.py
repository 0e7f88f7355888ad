# SPDX-License-Identifier: Apache-2.0
"""Always, never and dynamic on real servers, in interleaved rounds.

Three servers of one model run side by side and sleep while idle. In every round each
cell (workload, concurrency) is measured on all three, one right after the other and in
rotating order. A round gives one ratio a figure; medians are over the rounds, so that
what the machine does between rounds cancels. Two processes of one program differ by a few
percent for as long as they live, so the servers are started several times, and intervals
draw starts before they draw rounds.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import stats
from common.cli import BenchError
from harness import (
    ClosedLoop,
    Metrics,
    Request,
    Server,
    ServerSpec,
    drive,
    require_success,
    summarize,
)

MODES: dict[str, dict[str, Any]] = {
    "always": {},
    "never": {"disable_overlap_schedule": True},
    "dynamic": {"enable_dynamic_overlap": True},
}
# Of dynamic over each fixed mode; a larger throughput and smaller times are better.
FIGURES = ("tokens_per_s", "ttft_p50_s", "itl_p50_s", "itl_p99_s")
DECISIONS = "sglang:dynamic_overlap_decisions_total"


@dataclass(frozen=True)
class Workload:
    """Requests of one kind: prompt tokens, output limit, whether they may stop before."""

    prompt: int
    output: int
    stops: bool = False

    def requests(self, rng: random.Random, count: int) -> list[Request]:
        """Greedy requests over printable bytes that share nothing."""
        sampling: dict[str, Any] = {"ignore_eos": True}
        if self.stops:
            # One token in eight: an end that the scheduler does not foresee.
            sampling = {"stop_token_ids": list(range(97, 109))}
        return [
            Request(
                [rng.randrange(33, 127) for _ in range(self.prompt)],
                self.output,
                sampling=sampling,
            )
            for _ in range(count)
        ]


WORKLOADS = {
    "prefill-heavy": Workload(600, 4),
    "decode-heavy": Workload(16, 48),
    "short outputs": Workload(32, 32, stops=True),
}


def specs(model: Path, pythonpath: Sequence[str]) -> list[ServerSpec]:
    """A server a mode; they differ in the overlap flags only."""
    base = {
        "dtype": "float32",
        "max_total_tokens": 32768,
        "disable_radix_cache": True,
        "enable_metrics": True,
        "random_seed": 1,
        "sleep_on_idle": True,
    }
    return [
        ServerSpec(model, {**base, **flags}, name=f"overlap-{mode}", pythonpath=pythonpath)
        for mode, flags in MODES.items()
    ]


def measure(server: Server, requests: list[Request], concurrency: int) -> dict[str, Any]:
    """One run: figures and the outputs."""
    began = time.perf_counter()
    results = drive(server.url, requests, ClosedLoop(concurrency))
    seconds = time.perf_counter() - began
    require_success(results)
    summary = summarize(results)
    return {
        "tokens_per_s": summary.completion_tokens / seconds,
        "ttft_p50_s": summary.ttft_p50_s,
        "itl_p50_s": summary.itl_p50_s,
        "itl_p99_s": summary.itl_p99_s,
        "outputs": [result.output_ids for result in results],
    }


def rounds(
    servers: dict[str, Server],
    workloads: Sequence[str],
    concurrencies: Sequence[int],
    count: int,
    seed: int,
    start: int = 0,
) -> Iterator[dict[str, Any]]:
    """One row a round, cell and mode, of servers that were started for the ``start``-th time.

    Raises:
        BenchError: two modes answered the same request differently.
    """
    rng = random.Random(1000 * seed + start)
    order = list(servers)
    order = order[start % len(order) :] + order[: start % len(order)]
    for number in range(count):
        for workload in workloads:
            for concurrency in concurrencies:
                requests = WORKLOADS[workload].requests(rng, min(48, max(6, 2 * concurrency)))
                expected = None
                for mode in order:
                    figures = measure(servers[mode], requests, concurrency)
                    outputs = figures.pop("outputs")
                    if expected is not None and outputs != expected:
                        raise BenchError(f"{mode} answered differently ({workload})")
                    expected = outputs
                    yield {
                        "start": start,
                        "round": number,
                        "workload": workload,
                        "concurrency": concurrency,
                        "mode": mode,
                        **figures,
                    }
                order = order[1:] + order[:1]


def compare(rows: Sequence[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """One row a workload and figure: dynamic over each fixed mode, and over the better one.

    The better fixed mode is the one with the better median over the rounds, not the one
    that happened to be ahead in a round.
    """
    values: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        place = row["start"], row["concurrency"], row["round"]
        values[row["mode"], row["workload"], place] = row
    found = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        places = sorted(place for m, w, place in values if w == workload and m == "dynamic")
        for figure in FIGURES:
            # By mode and start.
            ratios: dict[str, dict[int, list[float]]] = {"always": {}, "never": {}}
            for mode, by_start in ratios.items():
                for place in places:
                    mine = values["dynamic", workload, place][figure]
                    other = values[mode, workload, place][figure]
                    if mine == mine and other > 0:  # NaN where a run had none
                        by_start.setdefault(place[0], []).append(mine / other)
            if not ratios["always"]:
                continue
            larger_is_better = figure == "tokens_per_s"
            medians = {
                mode: stats.median([ratio for start in by_start.values() for ratio in start])
                for mode, by_start in ratios.items()
            }
            # Over the better mode, dynamic looks worst.
            pick = min if larger_is_better else max
            better = pick(medians, key=medians.__getitem__)
            groups = list(ratios[better].values())
            low, high = stats.grouped_median_interval(groups, seed)
            found.append(
                {
                    "workload": workload,
                    "figure": figure,
                    "of_always": medians["always"],
                    "of_never": medians["never"],
                    "better": better,
                    "of_better": medians[better],
                    "low": low,
                    "high": high,
                    "starts": len(groups),
                    "pairs": sum(map(len, groups)),
                }
            )
    return found


def decisions(metrics: Sequence[Metrics]) -> list[dict[str, Any]]:
    """What dynamic servers decided, by outcome and reason."""
    counts: Counter[tuple[str, str]] = Counter()
    for scrape in metrics:
        for labels, value in scrape.matching(DECISIONS):
            counts[labels["outcome"], labels["reason"]] += round(value)
    return [
        {"outcome": outcome, "reason": reason, "decisions": count}
        for (outcome, reason), count in counts.items()
    ]
