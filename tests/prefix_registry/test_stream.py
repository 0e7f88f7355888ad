# SPDX-License-Identifier: Apache-2.0
"""A reader's state: gaps, restarts, late joins, foreign and malformed messages, healing."""

from __future__ import annotations

import hashlib
import itertools
import random

import pytest
from identities import expected, identity, page_digests
from sglang.srt.disaggregation.prefix_registry.history import History
from sglang.srt.disaggregation.prefix_registry.stream import Expected, Stream
from sglang.srt.disaggregation.prefix_registry.wire import (
    Adapters,
    Cleared,
    Removed,
    Stored,
    decode,
)

PROMPT = list(range(64))
PAGES = page_digests(PROMPT, 4, None, None, False)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Pair:
    """A history and a stream; messages pass only when ``deliver`` is told so."""

    def __init__(self, expected_=None, **history):
        self.clock = Clock()
        self.history = History(identity(), **history)
        self.stream = Stream(expected_ or expected(), clock=self.clock)

    def commit(self, *operations, deliver=True):
        for payload in self.history.commit(list(operations)):
            if deliver:
                self.stream.receive(payload)

    def store(self, first, last, **how):
        self.commit(Stored(1, b"".join(PAGES[first:last])), **how)

    def heartbeat(self):
        self.stream.receive(self.history.heartbeat())

    def heal(self):
        request = self.stream.due_request()
        if request is None:
            return None
        answers = list(self.history.answer(request))
        for payload in answers:
            self.stream.receive_answer(payload)
        return answers

    @property
    def known(self):
        return self.stream.estimate(PROMPT)


@pytest.fixture
def pair():
    pair = Pair()
    pair.heartbeat()
    pair.heal()
    return pair


def test_late_join_starts_with_a_snapshot():
    pair = Pair(replay_batches=2)
    for page in range(10):
        pair.store(page, page + 1, deliver=False)
    assert pair.stream.state == "connecting" and pair.known == 0
    pair.store(10, 11)
    assert pair.stream.state == "syncing" and pair.known == 0
    pair.heal()
    assert pair.stream.state == "live" and pair.known == 44
    assert pair.stream.counts["snapshots"] == 1
    assert pair.stream.counts["gaps"] == 0 and pair.stream.counts["restarts"] == 0


def test_gap_is_closed_by_a_replay(pair):
    pair.store(0, 4)
    pair.store(4, 6, deliver=False)
    pair.commit(Removed(1, PAGES[5]), deliver=False)
    assert pair.known == 16
    pair.store(6, 7)
    assert pair.stream.state == "syncing" and pair.known == 0, "conservative until healed"
    pair.heal()
    assert pair.known == 20
    counts = pair.stream.counts
    assert (counts["gaps"], counts["replays"], counts["snapshots"]) == (1, 1, 1)


def test_lost_tail_is_seen_by_the_heartbeat(pair):
    pair.store(0, 4, deliver=False)
    pair.heartbeat()
    assert pair.stream.counts["gaps"] == 1
    pair.heal()
    assert pair.known == 16


def test_gap_behind_the_replay_buffer_is_closed_by_a_snapshot():
    pair = Pair(replay_batches=10)
    pair.heartbeat()
    pair.heal()
    for i in range(20_000):
        pair.commit(Stored(1, PAGES[i % 16]), deliver=False)
        pair.commit(Removed(1, PAGES[(i + 8) % 16]), deliver=False)
    pair.heartbeat()
    pair.heal()
    assert pair.stream.counts["snapshots"] == 2 and pair.stream.counts["replays"] == 0
    assert set(pair.stream.registry.dump()) == {
        pair.history._resident.dump()[0][i : i + 32]
        for i in range(0, 32 * pair.history.num_blocks, 32)
    }


def test_updates_that_arrive_during_a_sync_are_kept(pair):
    pair.store(0, 2, deliver=False)
    pair.store(2, 4)
    request = pair.stream.due_request()
    answers = list(pair.history.answer(request))
    pair.store(4, 6)  # published after the answer was made, arrives before it
    for payload in answers:
        pair.stream.receive_answer(payload)
    assert pair.stream.state == "live" and pair.known == 24


def test_too_many_updates_during_a_sync_lead_to_another():
    pair = Pair()
    pair.stream = Stream(expected(), pending_updates=4, clock=pair.clock)
    pair.heartbeat()
    answers = list(pair.history.answer(pair.stream.due_request()))
    for page in range(10):
        pair.store(page, page + 1)
    for payload in answers:
        pair.stream.receive_answer(payload)
    assert pair.stream.state == "syncing" and pair.known == 0
    pair.heal()
    assert pair.stream.state == "live" and pair.known == 40


def test_restart_forgets_and_syncs(pair):
    pair.store(0, 8)
    pair.history = History(identity())
    pair.store(0, 3)
    assert pair.known == 0 and pair.stream.counts["restarts"] == 1
    pair.heal()
    assert pair.known == 12


def test_weight_update_keeps_what_is_still_cached(pair):
    pair.store(0, 8)
    pair.history.new_epoch()
    pair.heartbeat()
    assert pair.known == 0
    pair.heal()
    assert pair.known == 32
    pair.commit(Cleared())
    assert pair.known == 0


def test_messages_of_the_epoch_before_a_snapshot_do_not_undo_it(pair):
    pair.store(0, 2, deliver=False)
    pair.store(2, 4)
    late = pair.history.heartbeat()
    pair.history.new_epoch()
    pair.heal()
    assert pair.stream.epoch == pair.history.epoch and pair.known == 16
    pair.stream.receive(late)
    assert pair.stream.state == "live" and pair.known == 16


def test_a_clock_set_back_is_still_a_restart(pair):
    pair.clock.now += 60
    pair.history = History(identity(), clock=lambda: 1000.0)
    assert pair.history.epoch < pair.stream.epoch
    pair.store(0, 3)
    pair.heal()
    assert pair.known == 12


def test_duplicates_change_nothing(pair):
    for payload in pair.history.commit([Stored(1, PAGES[0])]):
        pair.stream.receive(payload)
        for again in pair.history.commit([Removed(1, PAGES[0])]):
            pair.stream.receive(again)
        pair.stream.receive(payload)
    assert pair.known == 0 and pair.stream.counts["duplicates"] == 1


def test_tiers_are_references_of_a_block(pair):
    pair.commit(Stored(1, PAGES[0]), Stored(2, PAGES[0]))
    assert pair.stream.registry.references(PAGES[0]) == [2]
    pair.commit(Removed(1, PAGES[0]))
    assert pair.known == 4
    pair.commit(Removed(1, PAGES[0]))
    assert pair.known == 4, "a tier's hold is taken away once"
    pair.commit(Removed(2, PAGES[0]))
    assert pair.known == 0


def test_prefix_ends_at_a_removed_page_and_goes_on_when_it_is_back(pair):
    pair.store(0, 16)
    pair.commit(Removed(1, PAGES[7]))
    assert pair.known == 28
    pair.store(7, 8)
    assert pair.known == 64


@pytest.mark.parametrize(
    ("field", "value"), [("model", "other"), ("dtype", "float16/auto"), ("page_size", 16)]
)
def test_foreign_publishers_are_refused_until_they_fit(pair, field, value):
    pair.store(0, 4)
    fields = {"model": "m", "dtype": "float32/auto", "page_size": 4, field: value}
    pair.stream._expected = Expected(**fields)
    pair.store(4, 5)
    assert pair.stream.state == "refused" and pair.known == 0
    assert pair.stream.counts[f"foreign_{field}"] == 1
    assert pair.stream.due_request() is None
    pair.stream._expected = expected()
    pair.heartbeat()
    pair.heal()
    assert pair.known == 20


def test_rank_of_another_is_refused():
    pair = Pair()
    pair.stream = Stream(expected(), rank=1, clock=pair.clock)
    pair.heartbeat()
    assert pair.stream.state == "refused" and pair.stream.counts["foreign_rank"] == 1


def test_malformed_messages_are_counted_and_harmless(pair):
    pair.store(0, 4)
    good = pair.history.commit([Stored(1, PAGES[4])])[0]
    chance = random.Random(1)
    for _ in range(500):
        bad = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            bad[chance.randrange(3)] = chance.randrange(256)
        pair.stream.receive(bytes(bad[: chance.randint(0, len(bad))]))
    assert pair.stream.counts["malformed"] > 100
    pair.heartbeat()
    pair.heal()
    assert pair.known == 20


def test_silence_is_visible_and_believed_nothing(pair):
    pair.store(0, 4)
    pair.clock.now += 1.4
    assert pair.known == 16
    pair.clock.now += 0.2
    assert pair.known == 0 and pair.stream.is_stale()
    assert pair.stream.silence_s() == pytest.approx(1.6)
    pair.heartbeat()
    assert pair.known == 16, "nothing was missed"


def test_unanswered_requests_are_repeated_less_and_less(pair):
    pair.store(0, 1, deliver=False)
    pair.heartbeat()
    asked = []
    for tick in range(400):
        pair.clock.now = 200 + tick / 10
        if pair.stream.due_request() is not None:
            asked.append(pair.clock.now)
    gaps = [round(b - a, 1) for a, b in itertools.pairwise(asked)]
    assert gaps[:4] == [0.5, 1.0, 2.0, 4.0] and max(gaps) <= 8.1
    pair.clock.now += 10
    pair.heal()
    assert pair.known == 4


def test_answers_to_an_older_request_are_ignored(pair):
    pair.store(0, 4, deliver=False)
    pair.heartbeat()
    old = pair.stream.due_request()
    pair.clock.now += 5
    new = pair.stream.due_request()
    snapshot = [
        *pair.history._snapshot(pair.history._header(), old.request, *pair.history._resident.dump())
    ]
    for payload in snapshot:
        pair.stream.receive_answer(payload)
    assert pair.stream.state == "syncing"
    for payload in pair.history.answer(new):
        pair.stream.receive_answer(payload)
    assert pair.known == 16


def test_snapshot_with_a_missing_part_is_asked_for_again():
    pair = Pair()
    many = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(10_000))
    pair.commit(Stored(1, many), deliver=False)
    pair.store(0, 16, deliver=False)
    pair.heartbeat()
    parts = list(pair.history.answer(pair.stream.due_request()))
    assert len(parts) == 3
    for payload in (parts[0], parts[2]):
        pair.stream.receive_answer(payload)
    assert pair.stream.state == "syncing" and pair.stream.counts["protocol_errors"] == 1
    assert pair.stream.due_request() is None, "not at once"
    pair.clock.now += 1
    pair.heal()
    assert pair.known == 64 and pair.stream.registry.num_blocks == 10_016


def test_adapters_are_known_by_name_and_come_with_a_snapshot(pair):
    lora = page_digests(PROMPT, 4, "tenant" + "f" * 32, None, False)
    pair.commit(Adapters({"sql": "f" * 32}), Stored(1, b"".join(lora)))
    ask = {"extra_key": "tenant", "lora_name": "sql"}
    assert pair.stream.estimate(PROMPT, **ask) == 64
    assert pair.stream.estimate(PROMPT, extra_key="tenant") == 0
    assert pair.stream.estimate(PROMPT, extra_key="tenant", lora_name="unknown") == 0
    pair.history.new_epoch()
    pair.heartbeat()
    pair.heal()
    assert pair.stream.estimate(PROMPT, **ask) == 64


def test_large_commits_become_messages_of_bounded_size(pair):
    many = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(10_000))
    payloads = pair.history.commit([Stored(1, many), Removed(1, many[: 32 * 5000])])
    assert len(payloads) == 4 and max(map(len, payloads)) < 132_000
    for payload in payloads:
        pair.stream.receive(payload)
    assert pair.stream.registry.num_blocks == 5000
    assert [decode(payload).header.seq for payload in payloads] == [1, 2, 3, 4]
