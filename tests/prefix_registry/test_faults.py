# SPDX-License-Identifier: Apache-2.0
"""The fault run: a publisher process is killed and restarted, messages are dropped."""

from __future__ import annotations

import hashlib
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import zmq
from identities import HEAL_S, expected
from sglang.srt.disaggregation.prefix_registry.endpoints import Endpoint
from sglang.srt.disaggregation.prefix_registry.stream import Stream
from sglang.srt.disaggregation.prefix_registry.subscriber import Subscriber


class PublisherProcess:
    """A publisher in a process of its own; it says what it holds when asked."""

    def __init__(self, port: int):
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("publisher_process.py")), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self.ask("ready") == "ready"

    def ask(self, *words: object) -> str:
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
        self.process.stdin.close()
        self.process.stdout.close()


class DroppingProxy:
    """Passes a publisher's updates on and drops some of them."""

    def __init__(self, upstream: str, chance: float):
        self.chance, self.dropped = chance, 0
        self._random = random.Random(3)
        self._context = zmq.Context()
        self._in = self._context.socket(zmq.SUB)
        self._in.subscribe(b"")
        self._in.set_hwm(0)
        self._in.connect(upstream)
        self._out = self._context.socket(zmq.PUB)
        self._out.set_hwm(0)
        self.address = f"tcp://127.0.0.1:{self._out.bind_to_random_port('tcp://127.0.0.1')}"
        self._stop = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._stop:
            if self._in.poll(50):
                frames = self._in.recv_multipart()
                if self._random.random() < self.chance:
                    self.dropped += 1
                else:
                    self._out.send_multipart(frames)

    def close(self):
        self._stop = True
        self._thread.join()
        self._context.destroy(linger=0)


@pytest.fixture
def run():
    from harness import free_port

    port = free_port()
    publishers, others = [], []

    class Run:
        endpoint = Endpoint(f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}")

        @staticmethod
        def start() -> PublisherProcess:
            publishers.append(PublisherProcess(port))
            return publishers[-1]

        @staticmethod
        def read(endpoint=None, **options) -> Stream:
            subscriber = Subscriber(**options)
            others.append(subscriber)
            stream = Stream(expected())
            subscriber.follow(stream, endpoint or Run.endpoint)
            return stream

        @staticmethod
        def also_close(thing):
            others.append(thing)
            return thing

    yield Run
    for other in reversed(others):
        other.close()
    for publisher in publishers:
        if publisher.process.poll() is None:
            publisher.kill()


def summary(stream: Stream) -> str:
    digests = sorted(stream.registry.dump())
    return f"{len(digests)} {hashlib.sha256(b''.join(digests)).hexdigest()}"


def heal(stream: Stream, wanted: str, seconds: float = HEAL_S) -> float:
    """Seconds until the stream is live and equal to the publisher's cache."""
    start = time.monotonic()
    while stream.state != "live" or stream.is_stale() or summary(stream) != wanted:
        assert time.monotonic() - start < seconds, (stream.state, summary(stream), wanted)
        time.sleep(0.02)
    return time.monotonic() - start


def test_kill_and_restart(run):
    first = run.start()
    stream = run.read()
    prompt = [int(token) for token in first.ask("remember").split()]
    heal(stream, first.ask("churn", 1, 5000), 10)
    assert stream.estimate(prompt) == len(prompt)
    first.kill()
    second = run.start()  # the same address, an empty cache
    began = time.monotonic()
    wanted = second.ask("churn", 2, 3000)
    took = heal(stream, wanted)
    assert stream.counts["restarts"] == 1
    assert stream.estimate(prompt) == 0, "cached before the restart, not now"
    print(
        f"equal {took:.2f} s after the restarted publisher's last change "
        f"({time.monotonic() - began:.2f} s after it was up)"
    )


def test_dropped_messages(run):
    publisher = run.start()
    proxy = run.also_close(DroppingProxy(run.endpoint.updates, 0.2))
    stream = run.read(Endpoint(proxy.address, run.endpoint.syncs))
    for seed in range(5):
        wanted = publisher.ask("churn", seed, 2000)
        heal(stream, wanted)
    assert proxy.dropped > 50 and stream.counts["gaps"] > 3


def test_twenty_thousand_updates_behind(run):
    publisher = run.start()
    stream = run.read()
    heal(stream, publisher.ask("churn", 1, 100), 10)
    # The reader stands still while more is published than its sockets and the replay take.
    standing = threading.Event()
    receive = stream.receive
    stream.receive = lambda payload: (standing.wait(), receive(payload))
    wanted = publisher.ask("churn", 2, 20_000)
    standing.set()
    stream.receive = receive
    heal(stream, wanted)
    assert stream.counts["snapshots"] >= 2


def test_no_wrong_positive_while_faults_come(run):
    publisher = run.start()
    proxy = run.also_close(DroppingProxy(run.endpoint.updates, 0.1))
    stream = run.read(Endpoint(proxy.address, run.endpoint.syncs))
    gone = [int(token) for token in publisher.ask("remember").split()]
    heal(stream, publisher.ask("churn", 1, 1000))
    assert stream.estimate(gone) == len(gone)
    publisher.ask("forget")  # evicts the prompt for good, with updates that may be lost
    start, wrong_until = time.monotonic(), 0.0
    while time.monotonic() - start < 3:
        if stream.estimate(gone):
            wrong_until = time.monotonic() - start
        publisher.ask("churn", random.randrange(10**6), 20)
    assert wrong_until < HEAL_S, "documented lag: one heartbeat and the answer"
