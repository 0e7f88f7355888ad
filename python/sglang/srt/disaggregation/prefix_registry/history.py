# SPDX-License-Identifier: Apache-2.0
"""What was published in this epoch: numbering, replay and snapshots. No sockets."""

from __future__ import annotations

import secrets
import time
from collections import deque
from dataclasses import dataclass
from typing import Callable, Iterator

import numpy as np
from sglang.srt.disaggregation.prefix_registry.table import make_table
from sglang.srt.disaggregation.prefix_registry.wire import (
    DIGEST_BYTES,
    FORMAT_VERSION,
    MAX_BLOCKS_PER_MESSAGE,
    Adapters,
    Cleared,
    Header,
    Heartbeat,
    Operation,
    Removed,
    SnapshotPart,
    Stored,
    Sync,
    SyncEnd,
    Update,
    encode,
)

_PART_BYTES = MAX_BLOCKS_PER_MESSAGE * DIGEST_BYTES
# A KV cache is bounded by its own pool; the table of what is in it needs no bound.
_UNBOUNDED = 2**31


@dataclass(frozen=True)
class Identity:
    """The fixed part of every header; see ``wire.Header``."""

    model: str
    dtype: str
    page_size: int
    unit: str
    instance: str
    rank: int


class History:
    """Numbers updates, remembers the last of them and what is cached now.

    Args:
        identity: of this publisher.
        replay_batches, replay_bytes: bounds of what is kept for replay.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        replay_batches: int = 10_000,
        replay_bytes: int = 32 << 20,
        clock: Callable[[], float] = time.time,
    ):
        self._identity = identity
        self._replay_batches = replay_batches
        self._replay_bytes = replay_bytes
        self._clock = clock
        self._resident = make_table(_UNBOUNDED)
        self._adapters: dict[str, str] = {}
        self._recent: deque[tuple[int, bytes]] = deque()
        self._recent_bytes = 0
        self.epoch = 0
        self.seq = 0
        self.lost_blocks = 0
        self.new_epoch()

    def new_epoch(self) -> None:
        """Readers must forget what they know and ask for what is cached now."""
        # Later than any epoch before it, also across restarts, unless the clock was set
        # back: readers only ask whether it is another one, which chance makes sure of.
        stamp = int(self._clock() * 1e9) >> 16 << 16 | secrets.randbits(16)
        self.epoch = max(self.epoch + 1, stamp)
        self.seq = 0
        self._recent.clear()
        self._recent_bytes = 0

    def commit(self, operations: list[Operation]) -> list[bytes]:
        """Number the operations; returns the updates to publish, in order."""
        return [self._commit(part) for part in _parts(operations)]

    def _commit(self, operations: list[Operation]) -> bytes:
        for operation in operations:
            if isinstance(operation, Stored):
                self._resident.store(operation.digests, operation.tier)
            elif isinstance(operation, Removed):
                self._resident.remove(operation.digests, operation.tier)
            elif isinstance(operation, Cleared):
                self._resident.clear()
            elif isinstance(operation, Adapters):
                self._adapters = dict(operation.ids)
        self.seq += 1
        payload = encode(Update(self._header(), operations))
        self._recent.append((self.seq, payload))
        self._recent_bytes += len(payload)
        while (
            len(self._recent) > self._replay_batches
            or self._recent_bytes > self._replay_bytes
        ):
            self._recent_bytes -= len(self._recent.popleft()[1])
        return payload

    def heartbeat(self) -> bytes:
        """Tells readers that they are up to date, or that they are not."""
        return encode(Heartbeat(self._header()))

    def answer(self, sync: Sync) -> Iterator[bytes]:
        """The messages that bring a reader up to ``seq``: a replay, else a snapshot.

        What they say is fixed by this call, however late they are taken.
        """
        reachable = sync.epoch == self.epoch and sync.after <= self.seq
        oldest = self._recent[0][0] if self._recent else self.seq + 1
        if reachable and sync.after + 1 >= oldest:
            replay = [payload for seq, payload in self._recent if seq > sync.after]
            return iter([*replay, encode(SyncEnd(self._header(), sync.request))])
        return self._snapshot(self._header(), sync.request, *self._resident.dump())

    def _snapshot(
        self, header: Header, request: int, digests: bytes, tiers: bytes
    ) -> Iterator[bytes]:
        operations: list[Operation] = [Adapters(dict(self._adapters))]
        held = np.frombuffer(tiers, np.uint8)
        rows = np.frombuffer(digests, np.dtype((np.void, DIGEST_BYTES)))
        for tier in np.unique(held):
            operations.append(Stored(int(tier), rows[held == tier].tobytes()))
        return _encode_parts(header, request, list(_parts(operations)))

    @property
    def num_blocks(self) -> int:
        """Blocks cached now."""
        return len(self._resident)

    @property
    def nbytes(self) -> int:
        """Memory of the table and of the replay buffer."""
        return self._resident.nbytes + self._recent_bytes

    def _header(self) -> Header:
        who = self._identity
        return Header(
            FORMAT_VERSION,
            who.model,
            who.dtype,
            who.page_size,
            who.unit,
            who.instance,
            who.rank,
            self.epoch,
            self.seq,
            self._clock(),
            self.lost_blocks,
        )


def _encode_parts(
    header: Header, request: int, parts: list[list[Operation]]
) -> Iterator[bytes]:
    for index, operations in enumerate(parts):
        yield encode(SnapshotPart(header, request, index, len(parts), operations))


def _parts(operations: list[Operation]) -> Iterator[list[Operation]]:
    """The operations in portions of at most ``MAX_BLOCKS_PER_MESSAGE`` blocks."""
    part: list[Operation] = []
    room = _PART_BYTES
    for operation in operations:
        if not isinstance(operation, (Stored, Removed)):
            part.append(operation)
            continue
        start = 0
        while start < len(operation.digests):
            if not room:
                yield part
                part, room = [], _PART_BYTES
            piece = operation.digests[start : start + room]
            part.append(type(operation)(operation.tier, piece))
            start += len(piece)
            room -= len(piece)
    if part:
        yield part
