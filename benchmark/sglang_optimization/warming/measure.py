# SPDX-License-Identifier: Apache-2.0
"""What the benchmark does with a running server."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from common import stats
from common.cli import BenchError
from harness import ClosedLoop, OpenLoop, Request, Result, Server, drive, require_success

from . import prompts as make

WARM_TIMEOUT_S = 300.0


def prompt_states(server: Server) -> list[dict[str, Any]]:
    """The listed prompts of the (only) scheduler."""
    (rank,) = server.get("/cache_warming")["ranks"]
    return rank["prompts"]


def wait_warm(server: Server) -> float:
    """Wait until every listed prompt is warm; returns the seconds that took.

    Raises:
        BenchError: it did not happen.
    """
    began = time.monotonic()
    while True:
        states = prompt_states(server)
        if all(prompt["state"] == "warm" for prompt in states):
            return time.monotonic() - began
        if time.monotonic() - began > WARM_TIMEOUT_S:
            cold = [p for p in states if p["state"] != "warm"]
            raise BenchError(f"not warm after {WARM_TIMEOUT_S:g} s: {cold[0]}")
        time.sleep(0.2)


def listed_tokens(server: Server) -> dict[str, int]:
    """Tokens of every listed prompt by name, in the file's order."""
    return {prompt["name"]: prompt["tokens"] for prompt in prompt_states(server)}


def chunk_tokens(server: Server) -> int:
    """Tokens of a warming step at present."""
    (rank,) = server.get("/cache_warming")["ranks"]
    return rank["chunk_tokens"]


def settle(server: Server) -> None:
    """Load and compile what the first requests of a process pay for; the cache is empty after."""
    server.generate("warm up the process " * 40, 4)
    server.flush_cache()


def seconds_alone(server: Server, traffic: make.Traffic, seed: int) -> float:
    """Mean time of a few requests of ``traffic``, one after the other."""
    settle(server)
    rng = random.Random(f"alone-{seed}")
    mean_length = replace(traffic, requests=4, words=(sum(traffic.words) // 2,) * 2)
    return stats.mean([r.latency_s for r in one_by_one(server, mean_length.make(rng))])


def one_by_one(server: Server, requests: Sequence[Request]) -> list[Result]:
    """The requests one after the other."""
    return _driven(server, requests, ClosedLoop(1))


def at_once(server: Server, requests: Sequence[Request]) -> list[Result]:
    """The requests all at the same time."""
    return _driven(server, requests, ClosedLoop(len(requests)))


def open_loop(server: Server, requests: Sequence[Request]) -> list[Result]:
    """The requests at their arrival times."""
    return _driven(server, requests, OpenLoop())


def _driven(server: Server, requests: Sequence[Request], schedule: Any) -> list[Result]:
    results = drive(server.url, requests, schedule)
    try:
        require_success(results)
    except RuntimeError as error:
        raise BenchError(str(error)) from error
    return results


def remove_all(server: Server) -> None:
    """List nothing any more."""
    names = [prompt["name"] for prompt in prompt_states(server)]
    if names:
        server.request("DELETE", "/cache_warming", json={"names": names})


@contextmanager
def always_warming(server: Server, words: int, seed: int) -> Iterator[None]:
    """Give the server something to warm for as long as the block runs.

    A prompt that became warm is replaced by a new one, through the endpoint.
    """
    rng = random.Random(seed)
    stop = threading.Event()
    failed: list[BaseException] = []

    def refill() -> None:
        made = 0
        try:
            while not stop.is_set():
                states = prompt_states(server)
                warm = [p["name"] for p in states if p["state"] == "warm"]
                if warm:
                    server.request("DELETE", "/cache_warming", json={"names": warm})
                if missing := 3 - (len(states) - len(warm)):
                    fresh = make.listed_prompts(rng, missing, words, f"busy-{seed}-{made}")
                    made += 1
                    server.post("/cache_warming", {"prompts": fresh})
                stop.wait(0.5)
        except BaseException as error:
            failed.append(error)

    worker = threading.Thread(target=refill)
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()
    if failed:
        raise failed[0]
