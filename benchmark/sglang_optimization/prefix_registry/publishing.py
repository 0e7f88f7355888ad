# SPDX-License-Identifier: Apache-2.0
"""What publishing costs a served prefill instance: two instances take turns, one publishes."""

from __future__ import annotations

import contextlib
import random
import time
from typing import Any

import psutil
import zmq

from common import stats
from harness import Server

from .pair import PROMPT_TOKENS, Pair, random_tokens

CLIENTS = 4
# The publisher's queue for one reader, and the stopped reader's buffers: small, so that
# they are full after a few requests and not only after hours.
SEND_UPDATES = 4
READER_BYTES = 2304
# Heartbeats show a reader that begins to read how much it missed.
HEARTBEATS_S = 1.5


class StoppedReader:
    """A subscriber that never reads, until it is asked what it missed."""

    def __init__(self, address: str) -> None:
        from sglang.srt.disaggregation.prefix_registry.wire import TOPIC

        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.set_hwm(1)
        self._socket.setsockopt(zmq.RCVBUF, READER_BYTES)
        self._socket.subscribe(TOPIC)
        self._socket.connect(address)

    def missed(self) -> tuple[int, int]:
        """Updates that it never gets, and all since its first; reads until it is up to date."""
        from sglang.srt.disaggregation.prefix_registry.wire import Update, decode

        seqs: list[int] = []
        got = 0
        end = time.monotonic() + HEARTBEATS_S
        while time.monotonic() < end:
            if self._socket.poll(50):
                message = decode(self._socket.recv_multipart()[-1])
                update = isinstance(message, Update)
                got += update
                # A heartbeat repeats the number of the last update before it.
                seqs += [message.header.seq - update, message.header.seq]  # type: ignore[union-attr]
        everything = seqs[-1] - seqs[0] if seqs else 0
        return max(0, everything - got), everything

    def close(self) -> None:
        """Closes its sockets."""
        self._context.destroy(linger=0)


def cpu_seconds(server: Server) -> float:
    """CPU time of a server's processes so far."""
    total = 0.0
    for process in server.processes():
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def measure(
    silent: Pair, publishing: Pair, *, rounds: int, prompts: int, seed: int, stopped: bool
) -> dict[str, Any]:
    """Prefill throughput with publishing by that without it, in alternating turns.

    Half of each prompt is one of four prefixes, which both instances have cached.

    Args:
        rounds: turns of each; both get the same prompts.
        prompts: of a turn.
        stopped: a further reader is connected that reads nothing.
    """
    chance = random.Random(seed)
    half = PROMPT_TOKENS // 2
    prefixes = [random_tokens(chance, half) for _ in range(4)]
    arms = {"silent": silent, "publishing": publishing}

    def turn() -> list[list[int]]:
        return [
            [*prefixes[i % len(prefixes)], *random_tokens(chance, PROMPT_TOKENS - half)]
            for i in range(prompts)
        ]

    warm_up = turn()
    for pair in arms.values():
        pair.ask_all(warm_up, CLIENTS)
    row: dict[str, Any] = {"reader": "stopped too" if stopped else "decode", "rounds": rounds}
    with contextlib.ExitStack() as stack:
        if stopped:
            reader = StoppedReader(publishing.updates_address())
            stack.callback(reader.close)
        rates: dict[str, list[float]] = {name: [] for name in arms}
        cpu: dict[str, list[float]] = {name: [] for name in arms}
        for number in range(rounds):
            asked = turn()
            order = list(arms) if number % 2 else list(arms)[::-1]
            for name in order:
                before = cpu_seconds(arms[name].prefill)
                seconds, answers = arms[name].ask_all(asked, CLIENTS)
                computed = sum(a.prompt_tokens - a.cached_tokens for a in answers)
                rates[name].append(computed / seconds)
                cpu[name].append((cpu_seconds(arms[name].prefill) - before) / computed)
        if stopped:
            row["missed"], row["published"] = reader.missed()
    for key, values in (("rate", rates), ("cpu", cpu)):
        middle, low, high = stats.ratio_interval(values["publishing"], values["silent"])
        row.update({f"{key}_ratio": middle, f"{key}_low": low, f"{key}_high": high})
    for name in arms:
        row[f"{name}_tokens_per_s"] = sum(rates[name]) / rounds
    return row
