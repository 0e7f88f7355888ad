# SPDX-License-Identifier: Apache-2.0
"""``--engine``: tokens a second of a real server, plain and with drafts.

All arms are up at once and take turns: in every round each answers the same prompts, alone on the
machine, so that a slow minute meets all of them. Prompts differ between rounds, as they do in
service: no arm profits from having answered the very same prompt before. Greedy, and answers are
compared: an arm whose output differs from plain decoding fails the run.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common import cli, progress, result, stats, table
from common.small_models import small_model
from harness import (
    ClosedLoop,
    Preloaded,
    Request,
    Server,
    ServerSpec,
    drive,
    require_success,
    serve,
)

from .engine_prompts import WORKLOADS

LOGS = Path(__file__).resolve().parents[3] / "build" / "logs"
BASE: dict[str, Any] = {
    "dtype": "float32",
    "enable_metrics": True,
    "random_seed": 1,
    "sleep_on_idle": True,  # servers that wait must leave the cores to the one measured
    "max_total_tokens": 8192,
    "context_length": 4096,
}
NGRAM = {"speculative_algorithm": "NGRAM"}
SAM = {**NGRAM, "speculative_ngram_use_sam": True}
ARMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "upstream NGRAM": NGRAM,
    "SAM fast": {**SAM, "speculative_ngram_sam_mode": "fast"},
    "SAM full": {**SAM, "speculative_ngram_sam_mode": "full"},
    # A step verifies no more than its drafts, which is what a threshold saves.
    "SAM full@0.15": {**SAM, "speculative_ngram_sam_threshold": 0.15},
}
COLUMNS = (
    table.Column("workload", "workload", text=True),
    table.Column("concurrency", "at a time"),
    table.Column("arm", "arm", text=True),
    table.Column("tokens_per_s", "tokens/s", table.number(1)),
    table.Column("versus_plain", "against plain", table.ratio),
    table.Column("accept_length", "accept length", table.number(2)),
    table.Column("equal", "output equal"),
)


@dataclass
class _Sums:
    """One arm on one workload over all rounds."""

    tokens: float = 0
    steps: float = 0
    requests: int = 0
    rates: list[float] = field(default_factory=list)  # tokens/s, one a round
    outputs: list[list[str]] = field(default_factory=list)

    def row(self, plain: _Sums) -> dict[str, Any]:
        pairs = zip(self.rates, plain.rates, strict=True)
        return {
            "tokens_per_s": stats.median(self.rates),
            "versus_plain": stats.median([mine / its for mine, its in pairs]),
            "accept_length": (self.tokens - self.requests) / self.steps if self.steps else None,
            "equal": "yes" if self.outputs == plain.outputs else "NO",
            "rates": self.rates,
        }


def run(options: argparse.Namespace) -> int:
    """Measures every arm; exit code 1 if an output differs from plain decoding."""
    rounds, new_tokens = options.repeats, 96 if options.full else 48
    plan = [*((name, 1) for name in WORKLOADS), ("copy", 4)]
    specs = [
        replace(
            ServerSpec(small_model("smollm2"), flags={**BASE, **flags}, ready_timeout_s=900),
            name=arm.replace(" ", "-").lower(),
        )
        for arm, flags in ARMS.items()
    ]
    sums = {(work, at_a_time, arm): _Sums() for work, at_a_time in plan for arm in ARMS}
    with (
        progress.steps(1 + rounds * len(plan)) as bar,
        Preloaded(LOGS) as preloaded,
        serve(*specs, log_dir=LOGS, report=progress.note, preloaded=preloaded) as servers,
    ):
        bar.start("warm up")
        for server in servers:
            server.generate("one two three four " * 20, max_new_tokens=16)
        bar.finish()
        for number in range(rounds):
            for workload, at_a_time in plan:
                bar.start(f"round {number + 1}: {workload}, {at_a_time} at a time")
                rng = random.Random(f"{options.seed}/{number}/{workload}/{at_a_time}")
                asked = [WORKLOADS[workload](rng) for _ in range(at_a_time)]
                requests = [Request(({"role": "user", "content": a},), new_tokens) for a in asked]
                for arm, server in zip(ARMS, servers, strict=True):
                    _measure(server, requests, at_a_time, sums[workload, at_a_time, arm])
                bar.finish()
    rows = [
        {"workload": work, "concurrency": at_a_time, "arm": arm}
        | sums[work, at_a_time, arm].row(sums[work, at_a_time, "plain"])
        for work, at_a_time, arm in sums
    ]
    table.show(
        "Served with SmolLM2-135M-Instruct, greedy, float32",
        COLUMNS,
        rows,
        note="medians of the rounds; against plain: within the same round",
    )
    if options.json:
        settings = {"rounds": rounds, "new_tokens": new_tokens, "flags": BASE, "arms": ARMS}
        result.write(options.json, result.document("spec_decode_engine", settings, rows))
    return cli.EXIT_OK if all(row["equal"] == "yes" for row in rows) else cli.EXIT_FAILED


def _measure(server: Server, requests: Sequence[Request], at_a_time: int, sums: _Sums) -> None:
    """One arm's turn: all requests, ``at_a_time`` together."""
    with server.measured() as scrape:
        began = time.perf_counter()
        results = drive(server.url, requests, ClosedLoop(at_a_time))
        spent = time.perf_counter() - began
    require_success(results)
    tokens = sum(r.completion_tokens for r in results)
    sums.tokens += tokens
    sums.steps += scrape[0].get("sglang:spec_verify_calls_total")
    sums.requests += len(requests)
    sums.rates.append(tokens / spent)
    sums.outputs.append([r.text for r in results])
