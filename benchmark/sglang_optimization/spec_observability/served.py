# SPDX-License-Identifier: Apache-2.0
"""Steps of a real server with speculation, and scrapes taken while it serves."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import ClosedLoop, Metrics, Request, Server, drive, require_success

BASE: dict[str, Any] = {
    "dtype": "float32",
    "enable_metrics": True,
    "random_seed": 1,
    "sleep_on_idle": True,
}
NGRAM: dict[str, Any] = {"speculative_algorithm": "NGRAM"}
ARMS: dict[str, dict[str, Any]] = {
    "NGRAM": NGRAM,
    "SAM": {**NGRAM, "speculative_ngram_use_sam": True},
}
DECODE_STAGES = ("lookup", "draft", "tree_build", "verify", "draft_extend", "index_update")
PROMPTS = (
    "Repeat this code exactly:\ndef mean(values):\n    total = 0\n    for value in values:\n"
    "        total += value\n    return total / len(values)\n",
    "Tell me a short story about a lighthouse.",
    "Write the numbers from one to thirty, each on its own line as 'number: N'.",
    "Why is the sky blue?",
)


@dataclass(frozen=True)
class Scrape:
    """One scrape: seconds since the first, and its text."""

    at_s: float
    text: str


class Recorder:
    """Scrapes a server's speculative metrics every ``period_s`` until closed."""

    def __init__(self, server: Server, period_s: float = 1.0) -> None:
        self.scrapes: list[Scrape] = []
        self._server, self._period_s = server, period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Recorder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        start = time.monotonic()
        while True:
            text = self._server.request("GET", "/metrics").text
            kept = [ln for ln in text.splitlines() if "sglang:spec_" in ln]
            self.scrapes.append(Scrape(time.monotonic() - start, "\n".join(kept) + "\n"))
            if self._stop.wait(self._period_s):
                return


def drive_for(server: Server, concurrency: int, requests: int, new_tokens: int) -> Metrics:
    """Answers that many requests and returns what the server counted meanwhile."""
    prompts = itertools.islice(itertools.cycle(PROMPTS), requests)
    sent = [
        Request([{"role": "user", "content": p}], new_tokens, sampling={"ignore_eos": True})
        for p in prompts
    ]
    before = server.metrics()
    require_success(drive(server.url, sent, ClosedLoop(concurrency)))
    return server.metrics() - before


def step_ms(interval: Metrics) -> float:
    """Mean milliseconds of a decode step's stages; a step's scheduling comes on top."""
    seconds = interval.by("sglang:spec_stage_seconds_sum", "stage")
    return 1e3 * sum(seconds.get(stage, 0.0) for stage in DECODE_STAGES) / timed_steps(interval)


def timed_steps(interval: Metrics) -> float:
    """Steps whose stages were timed. Counters follow later, several steps at once."""
    return interval.get("sglang:spec_stage_seconds_count", stage="verify")


def best_step_ms(scrapes: Sequence[Scrape], least_steps: int = 8) -> float:
    """The lowest mean over stretches of at least ``least_steps`` steps between two scrapes.

    Other work on the machine only makes steps longer, so this is nearest to an undisturbed step.
    """
    parsed = [m for m in map(Metrics.parse, (s.text for s in scrapes)) if timed_steps(m)]
    best, first = math.inf, 0
    for last in range(1, len(parsed)):
        while first < last:
            interval = parsed[last] - parsed[first]
            if timed_steps(interval) < least_steps:
                break
            best = min(best, step_ms(interval))
            first += 1
    return best


def batch_size(interval: Metrics) -> float:
    """Mean number of requests in a step."""
    return interval.total("sglang:spec_step_accepted_tokens_count") / interval.total(
        "sglang:spec_steps_total"
    )


def write_scrapes(path: Path, scrapes: list[Scrape]) -> None:
    """Writes scrapes as JSON lines."""
    import json

    with open(path, "w", encoding="utf-8") as out:
        for scrape in scrapes:
            out.write(json.dumps({"at_s": scrape.at_s, "text": scrape.text}) + "\n")
