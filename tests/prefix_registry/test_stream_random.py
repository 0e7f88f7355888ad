# SPDX-License-Identifier: Apache-2.0
"""Whatever is lost, delayed or restarted: a live reader knows one exact past state."""

from __future__ import annotations

import hashlib

import hypothesis.strategies as st
from hypothesis import given, settings
from identities import expected, identity
from sglang.srt.disaggregation.prefix_registry.history import History
from sglang.srt.disaggregation.prefix_registry.stream import LIVE, Stream
from sglang.srt.disaggregation.prefix_registry.wire import Cleared, Removed, Stored

DIGESTS = [hashlib.sha256(b"%d" % i).digest() for i in range(12)]
pages = st.lists(st.integers(0, 11), min_size=1, max_size=4)
operations = st.one_of(
    st.tuples(st.sampled_from(["store", "remove"]), pages, st.sampled_from([1, 2])),
    st.tuples(st.sampled_from(["clear", "weights", "restart", "clock back"])),
    st.tuples(st.sampled_from(["heartbeat", "ask", "answer", "wait", "reconnect"])),
    st.tuples(st.sampled_from(["deliver", "deliver", "lose"]), st.integers(1, 6)),
    st.tuples(st.just("sync")),
    st.tuples(st.sampled_from(["answers", "lose answers"]), st.integers(1, 4)),
)


class Network:
    """Queues between one publisher and one reader, and the publisher's past states."""

    def __init__(self):
        self.now = 100.0
        self.wall = 1000.0
        self.past: dict[tuple[int, int], dict[bytes, int]] = {}
        self.model: dict[bytes, int] = {}
        self.updates: list[bytes] = []
        self.requests: list = []
        self.answers: list[bytes] = []
        self.stream = Stream(expected(), clock=lambda: self.now, pending_updates=8)
        self.start()

    def start(self):
        self.history = History(identity(), replay_batches=3, clock=lambda: self.wall)
        # What was under way came over the connection that broke.
        self.updates, self.requests, self.answers = [], [], []
        self.model = {}
        self.note()
        self.stream.connecting()

    def note(self):
        self.past[self.history.epoch, self.history.seq] = dict(self.model)

    def commit(self, operation):
        self.updates += self.history.commit([operation])
        self.note()

    def step(self, name, *arguments):
        if name in ("store", "remove"):
            numbers, tier = arguments
            digests = b"".join(DIGESTS[i] for i in numbers)
            for i in numbers:
                held = self.model.get(DIGESTS[i], 0)
                held = held | tier if name == "store" else held & ~tier
                self.model[DIGESTS[i]] = held
                if not held:
                    del self.model[DIGESTS[i]]
            self.commit((Stored if name == "store" else Removed)(tier, digests))
        elif name == "clear":
            self.model = {}
            self.commit(Cleared())
        elif name == "weights":
            self.wall += 1
            self.history.new_epoch()
            self.note()
        elif name in ("restart", "clock back"):
            self.wall += 1 if name == "restart" else -500.5
            self.start()
        elif name == "heartbeat":
            self.updates.append(self.history.heartbeat())
        elif name == "ask":
            request = self.stream.due_request()
            if request is not None:
                self.requests.append(request)
        elif name == "answer" and self.requests:
            self.answers += list(self.history.answer(self.requests.pop(0)))
        elif name == "sync":
            for part in (("ask",), ("answer",), ("answers", len(self.answers) + 4)):
                self.step(*part)
        elif name == "wait":
            self.now += 3.0
        elif name == "reconnect":
            self.updates, self.requests, self.answers = [], [], []
            self.stream.connecting()
        elif name in ("deliver", "lose"):
            for _ in range(min(arguments[0], len(self.updates))):
                payload = self.updates.pop(0)
                if name == "deliver":
                    self.stream.receive(payload)
                    self.check()
        elif name in ("answers", "lose answers"):
            for _ in range(min(arguments[0], len(self.answers))):
                payload = self.answers.pop(0)
                if name == "answers":
                    self.stream.receive_answer(payload)
                    self.check()
        self.check()

    def check(self):
        stream = self.stream
        if stream.state == LIVE:
            assert stream.registry.dump() == self.past[stream.epoch, stream.seq]

    def settle(self):
        """The network works again: seconds until the reader is up to date."""
        for waited in range(40):
            self.step("heartbeat")
            self.step("deliver", len(self.updates))
            for _ in range(3):
                self.step("ask")
                while self.requests:
                    self.step("answer")
                self.step("answers", len(self.answers))
            here = (self.history.epoch, self.history.seq)
            if self.stream.state == LIVE and (self.stream.epoch, self.stream.seq) == here:
                assert self.stream.registry.dump() == self.model
                return waited / 4
            self.now += 0.25
        raise AssertionError(f"not healed: {self.stream.state}")


@settings(max_examples=400, deadline=None)
@given(st.lists(operations, max_size=60))
def test_a_live_reader_knows_one_exact_past_state_and_heals(history):
    network = Network()
    network.settle()
    for operation in history:
        network.step(*operation)
    network.settle()
