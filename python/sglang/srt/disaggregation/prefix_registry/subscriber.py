# SPDX-License-Identifier: Apache-2.0
"""One thread that reads any number of publishers into their streams."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Callable, Optional

import zmq
from sglang.srt.disaggregation.prefix_registry.endpoints import CurveKeys, Endpoint
from sglang.srt.disaggregation.prefix_registry.stream import SYNCING, Stream
from sglang.srt.disaggregation.prefix_registry.wire import TOPIC, encode

logger = logging.getLogger(__name__)

# Messages of one socket between two looks at the others.
_MESSAGES_A_TURN = 256
_TURN_MS = 50
# A publisher speaks at least every half second (setting heartbeat_s). After this long
# without a word, or an answer, the sockets are made anew.
SILENT_S = 1.0
UNANSWERED_S = 3.0
# An endpoint that no socket can be made for is tried again after so long.
RETRY_S = 5.0
# Two for each stream, at most that many (decode_side.MAX_INSTANCES, discovery.MAX_RANKS
# in theory; what the process's file descriptors allow in practice).
_MOST_SOCKETS = 16_384
# Larger than any message of this version (131 kB and a header).
_MAX_MESSAGE_BYTES = 4 << 20


@dataclass
class _Reader:
    stream: Stream
    endpoint: Endpoint
    updates: zmq.Socket
    syncs: zmq.Socket
    made_at: float

    def is_dead(self) -> bool:
        now = time.monotonic()
        heard = max(self.made_at, self.stream.heard_at or 0.0)
        answered = max(self.made_at, self.stream.answered_at)
        return now - heard > SILENT_S or (
            self.stream.state == SYNCING and now - answered > UNANSWERED_S
        )


class Subscriber:
    """Reads publishers; reconnects by making new sockets.

    ZeroMQ must not reconnect by itself here: a socket that stalled at its high-water
    mark and then reconnects aborts the process (libzmq issues 3937 and 4767), and so
    do its own heartbeats, which take a stalled reader for a dead peer.

    Args:
        keys: CURVE keys, or None.
        receive_updates: updates that may wait in a socket before some are lost.
    """

    def __init__(
        self, *, keys: Optional[CurveKeys] = None, receive_updates: int = 2_000
    ):
        self._keys = keys
        self._receive_updates = receive_updates
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _MOST_SOCKETS)
        self._failed: dict[Stream, tuple[Endpoint, float]] = {}
        self._readers: dict[Stream, _Reader] = {}
        self._wanted: deque[tuple[Stream, Optional[Endpoint]]] = deque()
        self._running = True
        self._thread = threading.Thread(
            target=self._run, name="prefix-registry-subscriber", daemon=True
        )
        self._thread.start()

    def follow(self, stream: Stream, endpoint: Endpoint) -> None:
        """Read ``endpoint`` into ``stream``; a known stream moves there, forgetting."""
        self._wanted.append((stream, endpoint))

    def drop(self, stream: Stream) -> None:
        """Stop reading into ``stream``."""
        self._wanted.append((stream, None))

    def close(self) -> None:
        """Stop the thread and close all sockets."""
        self._running = False
        self._thread.join(timeout=5.0)

    # ---- the thread

    def _run(self) -> None:
        try:
            while self._running:
                self._turn()
        except Exception:
            logger.exception("Prefix registry: reading ends; estimates become 0")
        finally:
            for reader in list(self._readers.values()):
                self._disconnect(reader)
            self._context.destroy(linger=0)

    def _turn(self) -> None:
        while self._wanted:
            self._change(*self._wanted.popleft())
        poller = zmq.Poller()
        for reader in self._readers.values():
            poller.register(reader.updates, zmq.POLLIN)
            poller.register(reader.syncs, zmq.POLLIN)
        self._retry()
        if not self._readers:
            time.sleep(_TURN_MS / 1e3)
            return
        # The set of sockets changes rarely, so one poller serves many turns.
        while self._running and not self._wanted and not self._revive():
            if self._retry():
                return
            ready = dict(poller.poll(_TURN_MS))
            for reader in self._readers.values():
                if reader.syncs in ready:
                    self._take(reader.syncs, reader.stream.receive_answer)
                if reader.updates in ready:
                    self._take(reader.updates, reader.stream.receive)
                self._ask(reader)

    def _revive(self) -> bool:
        """Make dead readers' sockets anew; True if there were any."""
        dead = [reader for reader in self._readers.values() if reader.is_dead()]
        for reader in dead:
            self._disconnect(self._readers.pop(reader.stream))
            self._connect(reader.stream, reader.endpoint)
        return bool(dead)

    @staticmethod
    def _take(socket: zmq.Socket, receive: Callable[[bytes], None]) -> None:
        for _ in range(_MESSAGES_A_TURN):
            try:
                frames = socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            receive(frames[-1])

    @staticmethod
    def _ask(reader: _Reader) -> None:
        request = reader.stream.due_request()
        if request is not None:
            # A full socket drops it; the next one is due later.
            with contextlib.suppress(zmq.Again):
                reader.syncs.send(encode(request), zmq.DONTWAIT)

    def _change(self, stream: Stream, endpoint: Optional[Endpoint]) -> None:
        self._failed.pop(stream, None)
        known = self._readers.pop(stream, None)
        if known is not None:
            self._disconnect(known)
            stream.forget()
        if endpoint is not None:
            self._connect(stream, endpoint)

    def _retry(self) -> bool:
        """Try again what failed long enough ago; True if a socket was made."""
        now = time.monotonic()
        due = [s for s, (_, at) in self._failed.items() if now >= at]
        for stream in due:
            self._connect(stream, self._failed.pop(stream)[0])
        return any(stream in self._readers for stream in due)

    def _connect(self, stream: Stream, endpoint: Endpoint) -> None:
        with contextlib.ExitStack() as made:
            try:
                updates = made.enter_context(self._context.socket(zmq.SUB))
                syncs = made.enter_context(self._context.socket(zmq.DEALER))
                self._set_up(updates, endpoint.updates)
                updates.setsockopt(zmq.SUBSCRIBE, TOPIC)
                self._set_up(syncs, endpoint.syncs)
            except zmq.ZMQError as error:
                # One bad address, or too many, must not end the reading of others.
                logger.error("Prefix registry: cannot read %s: %s", endpoint, error)
                self._failed[stream] = endpoint, time.monotonic() + RETRY_S
                return
            made.pop_all()
        self._readers[stream] = _Reader(
            stream, endpoint, updates, syncs, time.monotonic()
        )
        stream.connecting()

    def _set_up(self, socket: zmq.Socket, address: str) -> None:
        socket.set_hwm(self._receive_updates)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        if self._keys is not None:
            assert self._keys.server is not None, "a reader needs the publisher's key"
            socket.curve_publickey = self._keys.public
            socket.curve_secretkey = self._keys.secret
            socket.curve_serverkey = self._keys.server
        socket.connect(address)

    @staticmethod
    def _disconnect(reader: _Reader) -> None:
        reader.updates.close(linger=0)
        reader.syncs.close(linger=0)
