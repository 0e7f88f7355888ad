# SPDX-License-Identifier: Apache-2.0
"""Publishes one KV cache's changes from a thread of its own.

The scheduler only appends to a queue. All else (digests, encoding, sockets, replay,
snapshots) is this thread's, so a stopped reader or a full socket costs it nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from typing import Iterator, Optional

import zmq
from sglang.srt.disaggregation.prefix_registry.endpoints import (
    CurveKeys,
    Endpoint,
    tcp,
)
from sglang.srt.disaggregation.prefix_registry.history import History
from sglang.srt.disaggregation.prefix_registry.tap import CLEARED, NODE_STORED
from sglang.srt.disaggregation.prefix_registry.translate import ADAPTERS, Translator
from sglang.srt.disaggregation.prefix_registry.wire import (
    FORMAT_VERSION,
    TOPIC,
    Sync,
    WireError,
    decode,
)

logger = logging.getLogger(__name__)

_NEW_EPOCH = "new_epoch"
_GIVE_UP = "give_up"
# Events of one flush, and messages of one answer, between two looks at the sockets.
_FLUSHES_A_TURN = 32
_ANSWERS_A_TURN = 16
# Readers that are answered at once; a further request waits in the socket's queue.
_MOST_ANSWERS = 64
# A reader that takes nothing of its answer for this long is given up; it asks again.
_ANSWER_TIMEOUT_S = 10.0
_REQUEST_BYTES = 1024


class Publisher:
    """Args:
    history: numbers and remembers; used by the thread only once it runs.
    translator: makes operations of events.
    host: address to bind.
    ports: of updates and syncs; 0 for any.
    keys: CURVE keys, or None for no authentication.
    queue_blocks: blocks that may wait for the thread; beyond it stored blocks are
        dropped (never removed ones, so readers never learn of a block that is gone),
        and at twice as many all that waits, with what readers know.
    send_updates: updates that may wait for one reader before it loses some.
    heartbeat_s: longest silence.
    """

    def __init__(
        self,
        history: History,
        translator: Translator,
        *,
        host: str,
        ports: tuple[int, int] = (0, 0),
        keys: Optional[CurveKeys] = None,
        queue_blocks: int = 1_000_000,
        send_updates: int = 1000,
        heartbeat_s: float = 0.5,
    ):
        self._history = history
        self._translator = translator
        self._queue: deque[tuple[list[tuple], int]] = deque()
        self._queue_blocks = queue_blocks
        # Each is written by one thread only.
        self._offered = 0
        self._taken = 0
        self._dropped = 0
        self._dropped_when_cleared = 0
        # Cached blocks that readers were told to forget; whether they ever were.
        self._given_up = 0
        self._gave_up = False
        self._heartbeat_s = heartbeat_s
        self._running = True
        self._failure: Optional[str] = None
        self.updates_sent = 0
        self.answers_sent = 0
        self.bad_requests = 0
        self._context = zmq.Context()
        self._authenticator = None
        self._updates = self._context.socket(zmq.PUB)
        self._updates.set_hwm(send_updates)
        self._syncs = self._context.socket(zmq.ROUTER)
        self._syncs.set_hwm(_ANSWERS_A_TURN * 4)
        # Say so when a reader's queue is full or a reader is gone, instead of dropping.
        self._syncs.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._syncs.setsockopt(zmq.MAXMSGSIZE, _REQUEST_BYTES)
        try:
            self._authenticate(keys)
            bound = []
            for socket, port in ((self._updates, ports[0]), (self._syncs, ports[1])):
                socket.setsockopt(zmq.IPV6, int(":" in host))
                socket.setsockopt(zmq.LINGER, 0)
                bound.append(self._bind(socket, host, port))
        except BaseException:
            self._close_sockets()
            raise
        self.endpoint = Endpoint(*bound)
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._awake = False
        self._thread = threading.Thread(
            target=self._run, name="prefix-registry-publisher", daemon=True
        )
        self._thread.start()

    # ---- the scheduler's thread

    def offer(self, events: list[tuple], blocks: int) -> None:
        """Queue what the tap drained. Never waits."""
        if not events or self._failure is not None:
            return
        waiting = self._offered - self._taken
        if waiting + blocks > self._queue_blocks:
            events, blocks = self._without_stores(events)
            if waiting > 2 * self._queue_blocks:
                self._give_up()
                return
            if not events and self._queue:
                return  # what waits takes along how much was dropped
        self._offered += blocks
        self._queue.append((events, blocks))
        self._wake()

    def new_epoch(self) -> None:
        """What readers know must be forgotten (the weights changed)."""
        self._tell((_NEW_EPOCH,))

    def note_adapters(self, ids: dict[str, str]) -> None:
        """LoRA adapter ids by name, all of them."""
        self._tell((ADAPTERS, dict(ids)))

    def _tell(self, event: tuple) -> None:
        if self._failure is None:
            self._queue.append(([event], 0))
            self._wake()

    def _give_up(self) -> None:
        """Empty the queue, and with it what readers know: it must not grow for ever.

        Of blocks that are cached now readers know nothing until they are stored anew.
        """
        kept: list[tuple[list[tuple], int]] = []
        with contextlib.suppress(IndexError):  # the thread takes from the other end
            while True:
                events, blocks = self._queue.pop()
                self._offered -= blocks
                if events and events[0][0] in (_NEW_EPOCH, _GIVE_UP, ADAPTERS):
                    kept.append((events, 0))
        self._queue.extend(reversed(kept))
        if not self._gave_up:
            self._gave_up = True
            logger.error(
                "Prefix registry: the publisher's thread does not keep up with what is "
                "removed; readers forget this instance's cache (setting queue_blocks)"
            )
        self._tell((_GIVE_UP,))

    def _without_stores(self, events: list[tuple]) -> tuple[list[tuple], int]:
        kept, blocks, dropped = [], 0, 0
        for event in events:
            if event[0] == NODE_STORED:
                dropped += len(event[2])
            elif event[0] == "block_stored":
                dropped += len(event[1])
            else:
                if event[0] == CLEARED:
                    kept, blocks = [], 0
                kept.append(event)
                blocks += len(event[2]) if event[0] == "node_removed" else 0
                blocks += len(event[1]) if event[0] == "block_removed" else 0
        if dropped and not self._dropped:
            logger.warning(
                "Prefix registry: the publisher's thread is %d blocks behind; dropping "
                "what is stored until it caught up (setting queue_blocks)",
                self._offered - self._taken,
            )
        self._dropped += dropped
        return kept, blocks

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            with contextlib.suppress(BlockingIOError, OSError):
                os.write(self._wake_write, b"x")

    def close(self) -> None:
        """Stop the thread and close the sockets."""
        if not self._running:
            return
        self._running = False
        self._awake = False
        self._wake()
        self._thread.join(timeout=5.0)
        os.close(self._wake_read)
        os.close(self._wake_write)

    # ---- state, for metrics

    @property
    def failure(self) -> Optional[str]:
        """Why nothing is published any more, or None."""
        return self._failure

    @property
    def queued_blocks(self) -> int:
        """Blocks that wait for the thread."""
        return self._offered - self._taken

    @property
    def lost_blocks(self) -> int:
        """Blocks stored but not told since the cache was last emptied."""
        return self._history.lost_blocks

    @property
    def dropped_blocks(self) -> int:
        """Blocks ever dropped because the queue was full."""
        return self._dropped

    @property
    def history(self) -> History:
        """For metrics and tests; owned by the thread."""
        return self._history

    # ---- the thread

    def _authenticate(self, keys: Optional[CurveKeys]) -> None:
        if keys is None:
            return
        from zmq.auth.thread import ThreadAuthenticator

        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve(
            domain="*", location=keys.clients_dir or zmq.auth.CURVE_ALLOW_ANY
        )
        for socket in (self._updates, self._syncs):
            socket.curve_publickey = keys.public
            socket.curve_secretkey = keys.secret
            socket.curve_server = True

    @staticmethod
    def _bind(socket: zmq.Socket, host: str, port: int) -> str:
        address = tcp(host, port) if port else tcp(host, 0).removesuffix("0") + "*"
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            raise ValueError(
                f"the prefix registry cannot bind {address}: {error}. Choose another "
                'address with --cross-instance-cache-config \'{"bind": '
                '"tcp://HOST:PORT"}\''
            ) from None
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # the scheduler must go on without the registry
            self._failure = f"{type(error).__name__}: {error}"
            logger.exception("Prefix registry: publishing ends")
            self._queue.clear()
        finally:
            self._close_sockets()

    def _close_sockets(self) -> None:
        for socket in (self._updates, self._syncs):
            socket.close(linger=0)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=0)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake_read, zmq.POLLIN)
        poller.register(self._syncs, zmq.POLLIN)
        answers: dict[bytes, tuple[Iterator[bytes], bytes, float]] = {}
        last_sent = 0.0
        while self._running:
            if self._queue:
                wait_ms = 0.0
            elif answers:
                wait_ms = 5.0
            else:
                wait_ms = max(
                    0.0, 1e3 * (last_sent + self._heartbeat_s - time.monotonic())
                )
            ready = dict(poller.poll(wait_ms))
            if self._wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            # Before the queue is looked at: whoever appends from here on wakes again.
            self._awake = False
            sent = self._publish_queued()
            if self._syncs in ready and len(answers) < _MOST_ANSWERS:
                self._take_request(answers)
            self._answer(answers)
            now = time.monotonic()
            if sent:
                last_sent = now
            elif now - last_sent >= self._heartbeat_s:
                self._publish(self._history.heartbeat())
                last_sent = now

    def _publish_queued(self) -> bool:
        sent = False
        for _ in range(_FLUSHES_A_TURN):
            if not self._queue:
                break
            try:
                events, blocks = self._queue.popleft()
            except IndexError:  # given up by the scheduler's thread
                break
            kind = events[0][0] if events else None
            if kind == _NEW_EPOCH:
                self._history.new_epoch()
                self._publish(self._history.heartbeat())
                sent = True
            else:
                if kind == _GIVE_UP:
                    self._given_up += (
                        self._translator.lost_blocks + self._history.num_blocks
                    )
                    events = [(CLEARED,)]
                elif any(event[0] == CLEARED for event in events):
                    self._dropped_when_cleared = self._dropped
                    self._given_up = 0
                operations = self._translator.translate(events)
                self._history.lost_blocks = (
                    self._translator.lost_blocks
                    + self._given_up
                    + (self._dropped - self._dropped_when_cleared)
                )
                for payload in self._history.commit(operations):
                    self._publish(payload)
                    self.updates_sent += 1
                    sent = True
            self._taken += blocks
        return sent

    def _publish(self, payload: bytes) -> None:
        # PUB never blocks: a reader whose queue is full loses the message, and sees it.
        self._updates.send_multipart((TOPIC, payload))

    def _take_request(
        self, answers: dict[bytes, tuple[Iterator[bytes], bytes, float]]
    ) -> None:
        frames = self._syncs.recv_multipart()
        try:
            if len(frames) != 2:
                raise WireError("malformed", f"a request of {len(frames)} frames")
            request = decode(frames[1])
            if not isinstance(request, Sync):
                raise WireError("malformed", "not a request")
        except WireError as error:
            self.bad_requests += 1
            logger.warning("Prefix registry: request refused: %s", error)
            return
        assert request.version == FORMAT_VERSION
        answer = self._history.answer(request)
        first = next(answer)
        answers[frames[0]] = (answer, first, time.monotonic())

    def _answer(
        self, answers: dict[bytes, tuple[Iterator[bytes], bytes, float]]
    ) -> None:
        """Send what readers take now, a bounded number of messages for each."""
        for reader in list(answers):
            answer, payload, since = answers[reader]
            for _ in range(_ANSWERS_A_TURN):
                try:
                    self._syncs.send_multipart((reader, payload), zmq.DONTWAIT)
                except zmq.Again:
                    if time.monotonic() - since > _ANSWER_TIMEOUT_S:
                        del answers[reader]
                    else:
                        answers[reader] = (answer, payload, since)
                    break
                except zmq.ZMQError:
                    # The reader is gone (EHOSTUNREACH).
                    del answers[reader]
                    break
                since = time.monotonic()
                following = next(answer, None)
                if following is None:
                    self.answers_sent += 1
                    del answers[reader]
                    break
                payload = following
                answers[reader] = (answer, payload, since)
