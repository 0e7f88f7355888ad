# SPDX-License-Identifier: Apache-2.0
"""The wire format, byte by byte: a change here needs a new format version."""

from __future__ import annotations

import msgspec
import pytest
from sglang.srt.disaggregation.prefix_registry.wire import (
    FORMAT_VERSION,
    Adapters,
    Cleared,
    Header,
    Heartbeat,
    Removed,
    SnapshotPart,
    Stored,
    Sync,
    SyncEnd,
    Update,
    WireError,
    decode,
    encode,
)

HEADER = Header(1, "llama", "bfloat16/auto", 16, "token", "10.0.0.1:8998", 2, 2**60, 7, 1.5, 3)
DIGEST = bytes(range(32))
HEADER_BYTES = (
    "9b01a56c6c616d61ad62666c6f617431362f6175746f10a5746f6b656ead31302e302e302e313a3839393802"
    "cf100000000000000007cb3ff800000000000003"
)
DIGEST_BYTES = "c420" + DIGEST.hex()
GOLDEN = {
    "update": (
        Update(HEADER, [Stored(1, DIGEST), Removed(2, DIGEST), Cleared(), Adapters({"a": "b"})]),
        f"93a155{HEADER_BYTES}9493a15301{DIGEST_BYTES}93a15202{DIGEST_BYTES}91a14392a14181a161a162",
    ),
    "heartbeat": (Heartbeat(HEADER), f"92a148{HEADER_BYTES}"),
    "sync": (Sync(1, 5, 2**60, 7), "95a1510105cf100000000000000007"),
    "sync end": (SyncEnd(HEADER, 5), f"93a145{HEADER_BYTES}05"),
    "snapshot part": (
        SnapshotPart(HEADER, 5, 0, 2, [Stored(3, DIGEST)]),
        f"96a150{HEADER_BYTES}0500029193a15303{DIGEST_BYTES}",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes(name):
    message, golden = GOLDEN[name]
    assert encode(message).hex() == golden
    assert decode(bytes.fromhex(golden)) == message


def test_version_is_1():
    assert FORMAT_VERSION == 1  # the golden bytes are of this version


def test_fields_added_at_the_end_are_skipped():
    fields = msgspec.msgpack.decode(encode(Heartbeat(HEADER)))
    fields[1].append("new")
    assert decode(msgspec.msgpack.encode([*fields, "newer"])) == Heartbeat(HEADER)


def test_512_blocks_take_17_kB():
    assert len(encode(Update(HEADER, [Stored(1, DIGEST * 512)]))) < 17_000


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "malformed"),
        (b"\xc1", "malformed"),
        (b"not msgpack at all", "malformed"),
        (encode(Update(HEADER, []))[:-1], "malformed"),
        (msgspec.msgpack.encode(["U", list(msgspec.structs.astuple(HEADER))[:4], []]), "malformed"),
        (encode(Update(HEADER, [Stored(1, b"x" * 31)])), "malformed"),
        (encode(Update(HEADER, [Stored(0, DIGEST)])), "malformed"),
        (encode(Update(HEADER, [Removed(128, DIGEST)])), "malformed"),
        (encode(Heartbeat(msgspec.structs.replace(HEADER, version=2))), "version"),
        (msgspec.msgpack.encode(["Z", [9, {"another": "shape"}]]), "version"),
        (encode(Sync(2, 1, 0, 0)), "version"),
    ],
)
def test_what_cannot_be_used_is_told_apart(payload, reason):
    with pytest.raises(WireError) as error:
        decode(payload)
    assert error.value.reason == reason
    if reason == "version":
        assert "this reader knows 1" in str(error.value)
