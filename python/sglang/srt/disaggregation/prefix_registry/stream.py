# SPDX-License-Identifier: Apache-2.0
"""A reader's copy of one publisher's history: gaps, restarts, healing. No sockets.

States: ``connecting`` (nobody is connected), ``syncing`` (something is missing and is
asked for), ``live`` (all is known up to the last message), ``refused`` (the publisher
serves something else). Only a live stream that was heard lately estimates more than 0.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import Callable, Optional, Sequence

from sglang.srt.disaggregation.prefix_registry.registry import (
    CacheHashRegistry,
    Prompt,
)
from sglang.srt.disaggregation.prefix_registry.wire import (
    FORMAT_VERSION,
    Header,
    Heartbeat,
    Message,
    SnapshotPart,
    Sync,
    SyncEnd,
    Update,
    WireError,
    decode,
)

logger = logging.getLogger(__name__)

CONNECTING = "connecting"
SYNCING = "syncing"
LIVE = "live"
REFUSED = "refused"

# A request for a sync that got no answer is repeated after this, then twice as long.
FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 8.0
# A snapshot may overtake published messages of the epoch before; for this long those
# are not taken for a restart.
EPOCH_GRACE_S = 2.0


@dataclass(frozen=True)
class Expected:
    """What a publisher must serve; anything else is foreign."""

    model: str
    dtype: str
    page_size: int


class Stream:
    """Args:
    expected: what the publisher must serve.
    rank: its data-parallel rank.
    max_blocks: bound of the registry.
    stale_after_s: silence after which nothing is believed.
    pending_updates: updates kept while a sync is on its way.
    clock: monotonic seconds.
    """

    def __init__(
        self,
        expected: Expected,
        *,
        rank: int = 0,
        max_blocks: int = 4_000_000,
        stale_after_s: float = 1.5,
        pending_updates: int = 4096,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._expected = expected
        self._rank = rank
        self._max_blocks = max_blocks
        self._stale_after_s = stale_after_s
        self._clock = clock
        self._pending: deque[Update] = deque(maxlen=pending_updates)
        self._fresh: Optional[CacheHashRegistry] = None
        self._parts_seen = 0
        self._snapshot_of: Optional[tuple[int, int]] = None
        self._request = 0
        self._ask_at = float("-inf")
        self._retry_s = FIRST_RETRY_S
        self._want_snapshot = False
        self._told_refusal = ""
        self._epoch_since = float("-inf")
        self.state = CONNECTING
        self.registry = self._new_registry(bigram=False)
        self.epoch = 0
        self.seq = 0
        self.lost_blocks = 0
        self.heard_at: Optional[float] = None
        self.answered_at = float("-inf")
        self.delay_s: Optional[float] = None
        # updates, gaps, restarts, replays, snapshots, duplicates, protocol_errors,
        # malformed, and foreign_* by reason
        self.counts: Counter[str] = Counter()

    # ---- reading

    def estimate(self, prompt: Sequence[int] | Prompt, **namespace) -> int:
        """Tokens of the longest known prefix; 0 unless live and not stale."""
        if self.state != LIVE or self.is_stale():
            return 0
        return self.registry.estimate_cached_prefix_length(prompt, **namespace)

    def is_stale(self) -> bool:
        """Whether nothing was heard for ``stale_after_s``."""
        silence = self.silence_s()
        return silence is None or silence > self._stale_after_s

    def silence_s(self) -> Optional[float]:
        """Seconds since the last message; None before the first."""
        heard_at = self.heard_at
        return None if heard_at is None else max(0.0, self._clock() - heard_at)

    # ---- what the sockets deliver

    def receive(self, payload: bytes) -> None:
        """A published message."""
        message = self._admit(payload)
        if isinstance(message, (Update, Heartbeat)):
            if self._is_overtaken(message.header):
                self.counts["duplicates"] += 1
                return
            self._heard(message.header)
            if message.header.epoch != self.epoch:
                self._restart(message.header)
            if isinstance(message, Update):
                self._update(message)
            elif self.state == LIVE and message.header.seq > self.seq:
                self._gap()
        elif message is not None:
            self.counts["malformed"] += 1

    def receive_answer(self, payload: bytes) -> None:
        """A message that answers this stream's last request, or a stale one."""
        message = self._admit(payload)
        if message is None or self.state != SYNCING:
            return
        self.answered_at = self._clock()
        if isinstance(message, Update):
            self._replayed(message)
        elif isinstance(message, SyncEnd):
            if message.request != self._request:
                return
            if (message.header.epoch, message.header.seq) != (self.epoch, self.seq):
                self._protocol_error()
                return
            self.counts["replays"] += 1
            self._healed(message.header)
        elif isinstance(message, SnapshotPart):
            if message.request == self._request:
                self._snapshot_part(message)
        else:
            self.counts["malformed"] += 1

    def due_request(self) -> Optional[Sync]:
        """The sync to ask for now, if one is due."""
        now = self._clock()
        if self.state != SYNCING or now < self._ask_at:
            return None
        self._ask_at = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)
        self._request += 1
        self._fresh = None
        if self._want_snapshot:
            return Sync(FORMAT_VERSION, self._request, 0, 0)
        return Sync(FORMAT_VERSION, self._request, self.epoch, self.seq)

    def connecting(self) -> None:
        """New sockets are there: ask at once for what is missing, if not for all.

        What is published until they are connected shows as a gap.
        """
        if self.state != REFUSED:
            self._sync(want_snapshot=not self.epoch)

    def forget(self) -> None:
        """Start over, as if nothing was ever heard (the publisher moved)."""
        self.state = CONNECTING
        self.registry = self._new_registry(bigram=False)
        self.epoch = self.seq = 0
        self.heard_at = None
        self._pending.clear()
        self._fresh = None

    # ---- inside

    def _new_registry(self, *, bigram: bool) -> CacheHashRegistry:
        return CacheHashRegistry(
            self._expected.page_size, bigram=bigram, max_blocks=self._max_blocks
        )

    def _admit(self, payload: bytes) -> Optional[Message]:
        try:
            message = decode(payload)
            if isinstance(message, Sync):
                raise WireError("malformed", "a request where an answer was expected")
            self._check(message.header)
        except WireError as error:
            if error.reason == "malformed":
                self.counts["malformed"] += 1
                logger.warning("Prefix registry: %s", error)
            else:
                self._refuse(error)
            return None
        if self.state == REFUSED:
            self._told_refusal = ""
            self.state = CONNECTING
            self.epoch = 0
        return message

    def _check(self, header: Header) -> None:
        for reason, ours, theirs in (
            ("model", self._expected.model, header.model),
            ("dtype", self._expected.dtype, header.dtype),
            ("page_size", self._expected.page_size, header.page_size),
            ("rank", self._rank, header.rank),
        ):
            if ours != theirs:
                raise WireError(
                    reason,
                    f"{header.instance} rank {header.rank} publishes {reason} "
                    f"{theirs!r}, this instance needs {ours!r}",
                )
        if header.unit not in ("token", "bigram"):
            raise WireError(
                "unit", f"unit {header.unit!r} is not known; known: token, bigram"
            )

    def _refuse(self, error: WireError) -> None:
        self.counts[f"foreign_{error.reason}"] += 1
        self.heard_at = self._clock()
        if self.state != REFUSED:
            self.registry = self._new_registry(bigram=False)
            self._pending.clear()
            self._fresh = None
            self.state = REFUSED
        if self._told_refusal != str(error):
            self._told_refusal = str(error)
            logger.error("Prefix registry: not used: %s", error)

    def _heard(self, header: Header) -> None:
        self.heard_at = self._clock()
        self.delay_s = max(0.0, time.time() - header.time)
        self.lost_blocks = header.lost_blocks

    def _restart(self, header: Header) -> None:
        if self.epoch:
            self.counts["restarts"] += 1
        # Nothing of the epoch before is true; whether this one began empty is not
        # known either.
        self.registry = self._new_registry(bigram=header.unit == "bigram")
        self.epoch, self.seq = header.epoch, 0
        self._pending.clear()
        self._sync(want_snapshot=True)

    def _is_overtaken(self, header: Header) -> bool:
        return (
            header.epoch < self.epoch
            and self._clock() - self._epoch_since < EPOCH_GRACE_S
        )

    def _gap(self) -> None:
        self.counts["gaps"] += 1
        self._sync(want_snapshot=False)

    def _sync(self, *, want_snapshot: bool) -> None:
        self.state = SYNCING
        self._want_snapshot = want_snapshot
        self._ask_at = float("-inf")
        self._retry_s = FIRST_RETRY_S
        self._fresh = None

    def _protocol_error(self) -> None:
        self.counts["protocol_errors"] += 1
        retry = self._retry_s
        self._sync(want_snapshot=True)
        # Not at once: a publisher that errs again must not be asked in a loop.
        self._ask_at = self._clock() + retry

    def _update(self, update: Update) -> None:
        if self.state != LIVE:
            self._pending.append(update)
            return
        seq = update.header.seq
        if seq <= self.seq:
            self.counts["duplicates"] += 1
        elif seq == self.seq + 1:
            self._apply(update)
        else:
            self._pending.append(update)
            self._gap()

    def _apply(self, update: Update) -> None:
        self.registry.apply(update.operations)
        self.seq = update.header.seq
        self.counts["updates"] += 1

    def _replayed(self, update: Update) -> None:
        header = update.header
        if header.epoch != self.epoch or header.seq <= self.seq or self._want_snapshot:
            # Of an earlier request.
            return
        if header.seq != self.seq + 1:
            self._protocol_error()
            return
        self._apply(update)
        self._ask_at = self._clock() + self._retry_s

    def _snapshot_part(self, part: SnapshotPart) -> None:
        header = part.header
        if part.index == 0:
            self._fresh = self._new_registry(bigram=header.unit == "bigram")
            self._parts_seen = 0
            self._snapshot_of = (header.epoch, header.seq)
        if (
            self._fresh is None
            or part.index != self._parts_seen
            or self._snapshot_of != (header.epoch, header.seq)
        ):
            self._protocol_error()
            return
        self._fresh.apply(part.operations)
        self._parts_seen += 1
        self._ask_at = self._clock() + self._retry_s
        if self._parts_seen < part.count:
            return
        self.registry, self._fresh = self._fresh, None
        if header.epoch != self.epoch:
            self._epoch_since = self._clock()
            self.counts["restarts"] += bool(self.epoch)
        self.epoch, self.seq = header.epoch, header.seq
        self.counts["snapshots"] += 1
        self._healed(header)

    def _healed(self, header: Header) -> None:
        self._heard(header)
        self.state = LIVE
        pending, self._pending = self._pending, deque(maxlen=self._pending.maxlen)
        for update in pending:
            if update.header.epoch == self.epoch:
                self._update(update)
