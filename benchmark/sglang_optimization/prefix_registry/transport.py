# SPDX-License-Identifier: Apache-2.0
"""From a publisher process to a reader over ZeroMQ: throughput, lag and recovery."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from common.cli import BenchError
from common.stats import percentile

PATIENCE_S = 120.0
# Updates that may wait in the sockets: so many that throughput is measured without loss, and
# the settings' defaults where it is recovery that is measured.
NO_LOSS = 100_000
DEFAULT_SEND_UPDATES, DEFAULT_RECEIVE_UPDATES = 1000, 2000
# More than the sockets and the replay then hold.
BEHIND_UPDATES = 20_000


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that are free now, all different."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Worker:
    """The process of ``worker.py`` on two ports, updates and syncs."""

    def __init__(self, ports: list[int], send_updates: int = NO_LOSS) -> None:
        arguments = map(str, (*ports, send_updates))
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py")), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ready = self._answer()["ready"]

    def tell(self, *words: Any) -> None:
        """Give a command without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise BenchError("the publisher process ended; its error is above")
        return json.loads(line)

    def ask(self, *words: Any) -> dict[str, Any]:
        """Give a command and wait for its answer."""
        self.tell(*words)
        return self._answer()

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self.process.kill()
        self.process.wait()


@contextmanager
def reading(
    ports: list[int], receive_updates: int = NO_LOSS, *, model: str = "m", page_size: int = 16
) -> Iterator[Any]:
    """A stream that reads the publisher on these ports; a worker's model is "m"."""
    from sglang.srt.disaggregation.prefix_registry.endpoints import Endpoint
    from sglang.srt.disaggregation.prefix_registry.stream import Expected, Stream
    from sglang.srt.disaggregation.prefix_registry.subscriber import Subscriber

    subscriber = Subscriber(receive_updates=receive_updates)
    stream = Stream(Expected(model, "float32/auto", page_size))
    subscriber.follow(stream, Endpoint(*(f"tcp://127.0.0.1:{port}" for port in ports)))
    try:
        yield stream
    finally:
        subscriber.close()


def until(condition: Any, what: str) -> float:
    """The monotonic time at which ``condition`` was first seen to hold."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > PATIENCE_S:
            raise BenchError(f"{what}: not within {PATIENCE_S:.0f} s")
        time.sleep(0.0005)
    return time.monotonic()


def measure(blocks: int, flush: int, updates: int) -> dict[str, Any]:
    """All numbers of one publisher and one reader.

    Args:
        blocks: published for the throughput, and then cached when faults come.
        flush: blocks handed over at once, as after a prefill batch.
        updates: published one by one for the lag.
    """
    ports = free_ports(2)
    worker = Worker(ports)
    row: dict[str, Any] = {"arm": "registry", "blocks": blocks, "flush": flush}
    try:
        with reading(ports) as stream:
            until(lambda: stream.state == "live", "the first snapshot")
            worker.tell("fill", blocks, flush)
            done = until(lambda: stream.registry.num_blocks >= blocks // 32 * 32, "the blocks")
            told = worker._answer()
            row["blocks_per_s"] = blocks / (done - told["start"])
            row["offer_us_a_flush"] = 1e6 * (told["offered"] - told["start"]) / (blocks / flush)
            row.update(_lag(worker, stream, updates))
            row.update(_gap(worker, stream))
        with reading(ports, DEFAULT_RECEIVE_UPDATES) as late:
            start = time.monotonic()
            live = until(lambda: late.state == "live", "the late reader's snapshot")
            row["late_join_s"] = live - start
            row["late_join_blocks"] = late.registry.num_blocks
            worker.kill()
            killed = time.monotonic()
            worker = Worker(ports, DEFAULT_SEND_UPDATES)
            live = until(
                lambda: late.state == "live" and late.counts["restarts"] == 1, "the restart"
            )
            row["restart_s"] = live - worker.ready
            row["restart_process_s"] = worker.ready - killed
            row.update(_behind(worker, late))
    finally:
        worker.kill()
    return row


def _lag(worker: Worker, stream: Any, updates: int) -> dict[str, float]:
    """Milliseconds from the scheduler's hand-over to the reader's table."""
    seen: dict[int, float] = {}
    receive = stream.receive

    def noting(payload: bytes) -> None:
        receive(payload)
        seen.setdefault(stream.seq, time.monotonic())

    stream.receive = noting
    told = worker.ask("trickle", updates, 3)
    until(lambda: stream.seq >= told["first"] + updates - 1, "the updates")
    stream.receive = receive
    lags = [
        1e3 * (seen[told["first"] + i] - offered)
        for i, offered in enumerate(told["times"])
        if told["first"] + i in seen
    ]
    return {"lag_p50_ms": percentile(lags, 50), "lag_p99_ms": percentile(lags, 99)}


def _gap(worker: Worker, stream: Any) -> dict[str, float]:
    """Seconds from the loss of one update, the last for now, to equality again."""
    receive, lost = stream.receive, []

    def losing(payload: bytes) -> None:
        lost.append(time.monotonic())
        stream.receive = receive

    stream.receive = losing
    gaps = stream.counts["gaps"]
    worker.ask("trickle", 1, 0)
    live = until(lambda: stream.counts["gaps"] > gaps and stream.state == "live", "healing the gap")
    return {"gap_s": live - lost[0]}


def _behind(worker: Worker, stream: Any) -> dict[str, float]:
    """Seconds until a reader that stood still knows as many blocks as are cached again."""
    standing, receive = threading.Event(), stream.receive

    def waiting(payload: bytes) -> None:
        standing.wait()
        receive(payload)

    stream.receive = waiting
    told = worker.ask("trickle", BEHIND_UPDATES, 0)
    stream.receive = receive
    start = time.monotonic()
    standing.set()
    equal = until(
        lambda: stream.state == "live" and stream.registry.num_blocks == told["blocks"],
        "a reader that stood still",
    )
    return {"behind_s": equal - start, "behind_gaps": stream.counts["gaps"]}
