# SPDX-License-Identifier: Apache-2.0
"""The publisher's thread and sockets, with real readers on loopback."""

from __future__ import annotations

import hashlib
import threading
import time

import pytest
import zmq
import zmq.auth
from identities import expected, identity
from sglang.srt.disaggregation.prefix_registry.endpoints import CurveKeys, load_keys
from sglang.srt.disaggregation.prefix_registry.history import History
from sglang.srt.disaggregation.prefix_registry.publisher import Publisher
from sglang.srt.disaggregation.prefix_registry.stream import Stream
from sglang.srt.disaggregation.prefix_registry.subscriber import Subscriber
from sglang.srt.disaggregation.prefix_registry.translate import Translator
from sglang.srt.disaggregation.prefix_registry.wire import TOPIC, Sync, decode, encode


def hexes(first: int, last: int) -> list[str]:
    return [hashlib.sha256(b"%d" % i).hexdigest() for i in range(first, last)]


def stored(first: int, last: int) -> tuple:
    return ("node_stored", 1, hexes(first, last))


def removed(first: int, last: int) -> tuple:
    return ("node_removed", 1, hexes(first, last))


def resident(history: History) -> set[bytes]:
    digests, _ = history._resident.dump()
    return {digests[i : i + 32] for i in range(0, len(digests), 32)}


def wait_for(condition, seconds: float = 5.0) -> float:
    """Seconds until the condition held; fails after ``seconds``."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "not in time"
        time.sleep(0.005)
    return time.monotonic() - start


@pytest.fixture
def made():
    """Makes publishers and subscribers, and closes them."""
    things = []

    def publisher(keys: CurveKeys | None = None, ports=(0, 0), **options) -> Publisher:
        history_options = {
            key: options.pop(key) for key in ("replay_batches", "replay_bytes") if key in options
        }
        options.setdefault("heartbeat_s", 0.1)
        thing = Publisher(
            History(identity(), **history_options),
            Translator(4, bigram=False),
            host="127.0.0.1",
            ports=ports,
            keys=keys,
            **options,
        )
        things.append(thing)
        return thing

    def reader(endpoint, keys: CurveKeys | None = None, **options) -> Stream:
        subscriber = Subscriber(keys=keys, **options)
        things.append(subscriber)
        stream = Stream(expected())
        subscriber.follow(stream, endpoint)
        return stream

    publisher.reader = reader
    yield publisher
    for thing in reversed(things):
        thing.close()


def test_what_is_offered_arrives(made):
    publisher = made()
    stream = made.reader(publisher.endpoint)
    wait_for(lambda: stream.state == "live")
    publisher.offer([stored(0, 50), removed(10, 20)], 60)
    wait_for(lambda: stream.registry.num_blocks == 40)
    assert set(stream.registry.dump()) == resident(publisher.history)
    assert publisher.queued_blocks == 0 and publisher.failure is None


def test_idle_publishers_are_heard(made):
    publisher = made()
    stream = made.reader(publisher.endpoint)
    wait_for(lambda: stream.state == "live")
    time.sleep(0.5)
    assert stream.silence_s() < 0.3


def test_readers_that_stop_hold_neither_the_publisher_nor_others_up(made):
    publisher = made(send_updates=10)
    live = made.reader(publisher.endpoint)
    wait_for(lambda: live.state == "live")
    context = zmq.Context()
    stalled = context.socket(zmq.SUB)
    stalled.set_hwm(1)
    stalled.subscribe(TOPIC)
    stalled.connect(publisher.endpoint.updates)
    asking = context.socket(zmq.DEALER)
    asking.set_hwm(1)
    asking.connect(publisher.endpoint.syncs)
    time.sleep(0.3)
    publisher.offer([stored(0, 100_000)], 100_000)
    for request in range(3):  # asks for snapshots and never reads them
        asking.send(encode(Sync(1, request, 0, 0)))
    for start in range(100_000, 120_000, 20):
        publisher.offer([stored(start, start + 20)], 20)
    wait_for(lambda: publisher.queued_blocks == 0, 20)
    wait_for(lambda: live.state == "live" and live.registry.num_blocks == 120_000, 20)
    assert set(live.registry.dump()) == resident(publisher.history)
    assert publisher.failure is None
    context.destroy(linger=0)


def test_a_reader_that_was_stalled_catches_up(made):
    publisher = made(replay_batches=100, send_updates=50)
    stream = made.reader(publisher.endpoint, receive_updates=50)
    wait_for(lambda: stream.state == "live")
    standing, receive = threading.Event(), stream.receive
    stream.receive = lambda payload: (standing.wait(), receive(payload))
    for i in range(20_000):
        publisher.offer([stored(i, i + 1)], 1)
        if i >= 500:
            publisher.offer([removed(i - 500, i - 499)], 1)
    wait_for(lambda: publisher.queued_blocks == 0, 30)
    assert stream.seq < 1000
    standing.set()
    stream.receive = receive
    wait_for(
        lambda: (
            stream.state == "live"
            and stream.seq == publisher.history.seq
            and set(stream.registry.dump()) == resident(publisher.history)
        ),
        10,
    )
    assert stream.registry.num_blocks == 500


def test_an_overfull_queue_drops_stores_only_and_says_so(made):
    publisher = made(queue_blocks=100)
    stream = made.reader(publisher.endpoint)
    wait_for(lambda: stream.state == "live")
    publisher.offer([stored(0, 50)], 50)
    wait_for(lambda: stream.registry.num_blocks == 50)
    # More than the queue takes in one flush: the stores are dropped, the removal is not.
    publisher.offer([stored(50, 250), removed(0, 25)], 225)
    wait_for(lambda: stream.registry.num_blocks == 25)
    wait_for(lambda: stream.lost_blocks == 200)
    assert publisher.dropped_blocks == 200
    assert set(stream.registry.dump()) == {bytes.fromhex(h) for h in hexes(25, 50)}
    publisher.offer([("all_blocks_cleared",)], 0)
    wait_for(lambda: stream.registry.num_blocks == 0 and stream.lost_blocks == 0)


def test_a_flush_of_nothing_but_dropped_stores_is_survived(made):
    publisher = made(queue_blocks=100)
    stream = made.reader(publisher.endpoint)
    publisher.offer([stored(0, 200)], 200)
    wait_for(lambda: stream.lost_blocks == 200)
    publisher.offer([stored(200, 210)], 10)
    wait_for(lambda: stream.registry.num_blocks == 10)
    assert publisher.failure is None


def test_a_thread_that_is_too_slow_for_removals_gives_up_what_it_told(made):
    publisher = made(queue_blocks=100)
    stream = made.reader(publisher.endpoint)
    publisher.offer([stored(0, 90)], 90)
    wait_for(lambda: stream.registry.num_blocks == 90)
    go_on, translate = threading.Event(), publisher._translator.translate

    def stalled(events):
        go_on.wait(10)
        return translate(events)

    publisher._translator.translate = stalled
    publisher.note_adapters({"name": "id"})
    for _ in range(1000):
        publisher.offer([removed(300, 306)], 6)
    assert publisher.queued_blocks <= 210 and len(publisher._queue) < 100
    publisher.new_epoch()
    go_on.set()
    wait_for(lambda: stream.registry.num_blocks == 0 and stream.lost_blocks >= 90)
    publisher.offer([stored(200, 210)], 10)
    wait_for(lambda: stream.registry.num_blocks == 10)
    assert dict(publisher.history._adapters) == {"name": "id"}
    publisher.offer([("all_blocks_cleared",)], 0)
    wait_for(lambda: stream.registry.num_blocks == 0 and stream.lost_blocks == 0)
    assert publisher.failure is None and publisher.queued_blocks == 0


def test_malformed_requests_are_refused_and_harmless(made):
    publisher = made()
    context = zmq.Context()
    asking = context.socket(zmq.DEALER)
    asking.connect(publisher.endpoint.syncs)
    for frames in ([b"garbage"], [b"a", b"b"], [b""], [encode(Sync(9, 1, 0, 0))], [b"x" * 900]):
        asking.send_multipart(frames)
    wait_for(lambda: publisher.bad_requests == 5)
    asking.send(encode(Sync(1, 3, 0, 0)))
    assert asking.poll(2000)
    assert decode(asking.recv()).request == 3
    context.destroy(linger=0)


def test_an_error_in_the_thread_ends_publishing_and_nothing_else(made):
    publisher = made()
    publisher.offer([("unheard of",)], 1)
    wait_for(lambda: publisher.failure is not None)
    assert "unheard of" in publisher.failure
    publisher.offer([stored(0, 1)], 1)  # accepted and forgotten


def test_bound_address_in_use_names_the_setting(made):
    publisher = made()
    port = int(publisher.endpoint.updates.rpartition(":")[2])
    with pytest.raises(ValueError, match=r"cannot bind tcp://127.0.0.1:\d+.*--cross-instance"):
        made(ports=(port, 0))


@pytest.fixture
def key_files(tmp_path):
    for name in ("prefill", "decode", "stranger"):
        zmq.auth.create_certificates(tmp_path, name)
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (tmp_path / "decode.key").rename(allowed / "decode.key")
    return tmp_path


def test_with_keys_only_allowed_readers_read(made, key_files):
    server = str(key_files / "prefill.key")
    publisher = made(
        load_keys(str(key_files / "prefill.key_secret"), clients_dir=str(key_files / "allowed"))
    )
    publisher.offer([stored(0, 10)], 10)
    friend = made.reader(
        publisher.endpoint, load_keys(str(key_files / "decode.key_secret"), server)
    )
    stranger = made.reader(
        publisher.endpoint, load_keys(str(key_files / "stranger.key_secret"), server)
    )
    nobody = made.reader(publisher.endpoint)
    wait_for(lambda: friend.registry.num_blocks == 10)
    time.sleep(0.5)
    assert stranger.state == "syncing" and stranger.heard_at is None
    assert nobody.state == "syncing" and nobody.heard_at is None


def test_a_publisher_with_another_key_is_not_read(made, key_files):
    publisher = made(load_keys(str(key_files / "stranger.key_secret")))
    stream = made.reader(
        publisher.endpoint,
        load_keys(str(key_files / "decode.key_secret"), str(key_files / "prefill.key")),
    )
    time.sleep(0.6)
    assert stream.heard_at is None
