# SPDX-License-Identifier: Apache-2.0
"""Messages of the prefix registry: format version 1, msgpack. See docs/prefix-registry.md.

Every message is one array: its kind, the header, then what the kind adds. A field is
only ever added at an array's end, which old readers skip; anything else takes a new
version number.
"""

from __future__ import annotations

from typing import Union

import msgspec

FORMAT_VERSION = 1
# First frame of everything published; subscribers subscribe to it.
TOPIC = b"sglang-prefix"
DIGEST_BYTES = 32
# Blocks in one message: bounds its size to 131 kB and the time one takes to apply.
MAX_BLOCKS_PER_MESSAGE = 4096

TIER_DEVICE = 1
TIER_HOST = 2
TIER_DISK = 4
TIER_EXTERNAL = 8
# By the names of upstream's StorageMedium.
TIERS = {
    "GPU": TIER_DEVICE,
    "CPU_PINNED": TIER_HOST,
    "DISK": TIER_DISK,
    "EXTERNAL": TIER_EXTERNAL,
}


class WireError(ValueError):
    """A message that cannot be used. ``reason`` is a short name for metrics."""

    def __init__(self, reason: str, text: str):
        super().__init__(text)
        self.reason = reason


class Header(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Who speaks, and where in its history.

    Attributes:
        version: format version.
        model, dtype, page_size: what a digest's KV belongs to; ``page_size`` in tokens.
        unit: ``token``, or ``bigram`` for a tree that EAGLE keys by pairs of tokens.
        instance: name of the instance, for people.
        rank: data-parallel rank; each has a KV cache and a history of its own.
        epoch: changes when the history starts anew (restart, weight update).
        seq: number of the last update in this epoch that the message includes;
            the first update has 1.
        time: seconds since 1970 on the sender's clock when it was made.
        lost_blocks: blocks of this epoch that were stored but are not told, because
            the sender could not keep up. They count as not cached.
    """

    version: int
    model: str
    dtype: str
    page_size: int
    unit: str
    instance: str
    rank: int
    epoch: int
    seq: int
    time: float
    lost_blocks: int = 0


class Stored(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="S"):
    """PrefixCacheStored: ``tier`` holds these digests, 32 bytes each."""

    tier: int
    digests: bytes


class Removed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="R"):
    """PrefixCacheRemoved: ``tier`` no longer holds them."""

    tier: int
    digests: bytes


class Cleared(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="C"):
    """Nothing is cached any more."""


class Adapters(msgspec.Struct, array_like=True, frozen=True, tag="A"):
    """LoRA adapters by name: the ids that this instance's namespaces end with."""

    ids: dict[str, str]


Operation = Union[Stored, Removed, Cleared, Adapters]


class Update(msgspec.Struct, array_like=True, frozen=True, tag="U"):
    """Changes, in order. Published; sent again as the answer to a ``Sync``."""

    header: Header
    operations: list[Operation]


class Heartbeat(msgspec.Struct, array_like=True, frozen=True, tag="H"):
    """Nothing new since ``header.seq``. Published when idle."""

    header: Header


class Sync(msgspec.Struct, array_like=True, frozen=True, tag="Q"):
    """A reader asks for what it lacks.

    Attributes:
        version: format version.
        request: returned in the answer; answers to older requests are ignored.
        epoch, after: what the reader has: updates up to ``after``. 0, 0: nothing.
    """

    version: int
    request: int
    epoch: int
    after: int


class SyncEnd(msgspec.Struct, array_like=True, frozen=True, tag="E"):
    """The updates just sent reach up to ``header.seq``."""

    header: Header
    request: int


class SnapshotPart(msgspec.Struct, array_like=True, frozen=True, tag="P"):
    """Part ``index`` of ``count`` of all that is cached as of ``header.seq``."""

    header: Header
    request: int
    index: int
    count: int
    operations: list[Operation]


Message = Union[Update, Heartbeat, Sync, SyncEnd, SnapshotPart]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)
_anything = msgspec.msgpack.Decoder()


def encode(message: Message) -> bytes:
    """The message's bytes."""
    return _encoder.encode(message)


def decode(payload: bytes) -> Message:
    """Read and check one message.

    Raises:
        WireError: not msgpack, another version, or not a message of this version.
    """
    try:
        message = _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        version = _version_of(payload)
        if version is not None and version != FORMAT_VERSION:
            raise _other_version(version) from None
        raise WireError("malformed", f"not a registry message: {error}") from None
    version = message.version if isinstance(message, Sync) else message.header.version
    if version != FORMAT_VERSION:
        raise _other_version(version)
    for operation in getattr(message, "operations", ()):
        if isinstance(operation, (Stored, Removed)):
            if len(operation.digests) % DIGEST_BYTES:
                raise WireError(
                    "malformed",
                    f"{len(operation.digests)} bytes of digests are not a multiple "
                    f"of {DIGEST_BYTES}",
                )
            if not 1 <= operation.tier <= 127:
                raise WireError(
                    "malformed", f"tier {operation.tier} is not between 1 and 127"
                )
    return message


def _other_version(version: object) -> WireError:
    return WireError(
        "version",
        f"format version {version!r}; this reader knows {FORMAT_VERSION}. Run the same "
        "release on both sides.",
    )


def _version_of(payload: bytes) -> object:
    """The version that an unreadable message claims, if it has that outline."""
    try:
        fields = _anything.decode(payload)
    except msgspec.MsgspecError:
        return None
    if not isinstance(fields, list) or len(fields) < 2:
        return None
    head = fields[1]
    if isinstance(head, list):
        return head[0] if head else None
    return head if isinstance(head, int) else None
