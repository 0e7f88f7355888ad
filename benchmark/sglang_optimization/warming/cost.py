# SPDX-License-Identifier: Apache-2.0
"""What warming costs real traffic: the same open-loop stream with and without it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness import Result, Server, summarize

from . import measure
from .prompts import Traffic

IDLE, BUSY = "nothing to warm", "always busy"


@dataclass
class Stream:
    """What the requests of one kind of turn measured.

    Attributes:
        results: of all turns.
        warmed_tokens, step_seconds: computed by warming meanwhile.
        chunk_tokens: size of a step at the end of the last turn.
    """

    results: list[Result] = field(default_factory=list)
    warmed_tokens: float = 0.0
    step_seconds: float = 0.0
    chunk_tokens: int | None = None


def compare(
    server: Server,
    traffic: Traffic,
    turns: int,
    seed: int,
    prompt_words: int,
    announce: Callable[[str], None],
) -> dict[str, Stream]:
    """Send the same requests in turns without and with warming, on one server.

    Every turn begins with an empty cache. The order of the two alternates, so that a
    machine that slows down or speeds up favours neither.
    """
    streams = {IDLE: Stream(), BUSY: Stream()}
    for turn in range(turns):
        requests = traffic.make(random.Random(f"{seed}-{turn}"))
        for kind in (IDLE, BUSY) if turn % 2 == 0 else (BUSY, IDLE):
            announce(f"traffic, turn {turn + 1} of {turns}, warming: {kind}")
            stream = streams[kind]
            measure.remove_all(server)
            server.flush_cache()
            if kind == IDLE:
                stream.results += measure.open_loop(server, requests)
                continue
            with server.measured() as change, measure.always_warming(server, prompt_words, turn):
                stream.results += measure.open_loop(server, requests)
            stream.warmed_tokens += change[0].total("sglang:cache_warming_tokens_total")
            stream.step_seconds += change[0].total("sglang:cache_warming_seconds_total")
            stream.chunk_tokens = measure.chunk_tokens(server)
    measure.remove_all(server)
    return streams


def rows(streams: dict[str, Stream]) -> list[dict[str, Any]]:
    """A row a kind; ratios are by the turns without warming."""
    idle = summarize(streams[IDLE].results)
    made = []
    for kind, stream in streams.items():
        summary = summarize(stream.results)
        steps = stream.warmed_tokens / stream.chunk_tokens if stream.chunk_tokens else 0
        made.append(
            {
                "warming": kind,
                "requests": len(stream.results),
                "ttft_p50_s": summary.ttft_p50_s,
                "ttft_p90_s": summary.ttft_p90_s,
                "ttft_p99_s": summary.ttft_p99_s,
                "p50_ratio": summary.ttft_p50_s / idle.ttft_p50_s,
                "p90_ratio": summary.ttft_p90_s / idle.ttft_p90_s,
                "p99_ratio": summary.ttft_p99_s / idle.ttft_p99_s,
                "warmed_tokens": stream.warmed_tokens if steps else None,
                "chunk_tokens": stream.chunk_tokens,
                "step_s": stream.step_seconds / steps if steps else None,
            }
        )
    return made
