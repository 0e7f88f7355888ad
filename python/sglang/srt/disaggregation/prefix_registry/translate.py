# SPDX-License-Identifier: Apache-2.0
"""From a tree core's events to operations with whole digests (publisher's thread)."""

from __future__ import annotations

from array import array
from typing import Optional

from sglang.srt.disaggregation.prefix_registry.digests import (
    hash_pages,
    namespace_seed,
)
from sglang.srt.disaggregation.prefix_registry.tap import (
    CLEARED,
    NODE_REMOVED,
    NODE_STORED,
)
from sglang.srt.disaggregation.prefix_registry.wire import (
    DIGEST_BYTES,
    TIERS,
    Adapters,
    Cleared,
    Operation,
    Removed,
    Stored,
)

# Put into the queue by the publisher itself.
ADAPTERS = "adapters"


class Translator:
    """Turns events into operations; keeps what that needs.

    The Rust core's events name pages by 8 bytes of a hash that leaves out the extra
    key, and give the token ids of stored pages. From those the chain is hashed, on this
    thread; ``_known`` finds the digest when the page is named again.
    """

    def __init__(self, page_size: int, *, bigram: bool):
        self._page_size = page_size
        self._bigram = bigram
        # extra key -> event hash -> one byte of tiers and the digest
        self._known: dict[Optional[str], dict[int, bytes]] = {}
        self.lost_blocks = 0

    def translate(self, events: list[tuple]) -> list[Operation]:
        """Operations of the same effect, neighbours of one kind as one."""
        out: list[Operation] = []
        run: Optional[tuple[type, int, list[bytes]]] = None
        for event in events:
            kind = event[0]
            if kind == NODE_STORED:
                new = (Stored, event[1], bytes.fromhex("".join(event[2])))
            elif kind == NODE_REMOVED:
                new = (Removed, event[1], bytes.fromhex("".join(event[2])))
            elif kind == "block_stored":
                new = (Stored, TIERS[event[5]], self._stored(event))
            elif kind == "block_removed":
                new = (Removed, TIERS[event[2]], self._removed(event))
            elif kind == CLEARED:
                self._known.clear()
                self.lost_blocks = 0
                # What came before it has no effect any more.
                out, run = [op for op in out if isinstance(op, Adapters)], None
                out.append(Cleared())
                continue
            elif kind == ADAPTERS:
                _flush(run, out)
                run = None
                out.append(Adapters(event[1]))
                continue
            else:
                raise ValueError(f"the tree core sent an unknown event {kind!r}")
            if run is not None and run[:2] == new[:2]:
                run[2].append(new[2])
            else:
                _flush(run, out)
                run = (new[0], new[1], [new[2]])
        _flush(run, out)
        return out

    def _stored(self, event: tuple) -> bytes:
        _, hashes, parent, tokens, _, medium, salt, _, extra_key = event
        tier = TIERS[medium]
        known = self._known.setdefault(extra_key, {})
        entries = [known.get(each) for each in hashes]
        if None in entries:
            if parent is None:
                prior: Optional[bytes] = namespace_seed(extra_key, salt)
            else:
                before = known.get(parent)
                prior = None if before is None else before[1:]
            if prior is None:
                # Its parent was never told (see Publisher.offer): no digest to chain on.
                self.lost_blocks += len(hashes)
                return b""
            digests = hash_pages(
                self._token_array(tokens), self._page_size, prior, bigram=self._bigram
            )
            self._check(hashes, digests, extra_key, salt)
        else:
            digests = b"".join(entry[1:] for entry in entries)
        for i, (each, entry) in enumerate(zip(hashes, entries, strict=True)):
            tiers = tier | (entry[0] if entry is not None else 0)
            digest = digests[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES]
            known[each] = bytes((tiers,)) + digest
        return digests

    def _removed(self, event: tuple) -> bytes:
        _, hashes, medium, extra_key = event
        tier = TIERS[medium]
        known = self._known.get(extra_key, {})
        digests = []
        for each in hashes:
            entry = known.get(each)
            if entry is None:
                continue
            digests.append(entry[1:])
            left = entry[0] & ~tier
            if left:
                known[each] = bytes((left,)) + entry[1:]
            else:
                del known[each]
        if not known:
            self._known.pop(extra_key, None)
        return b"".join(digests)

    def _token_array(self, tokens: list) -> array:
        if not self._bigram:
            return array("q", tokens)
        raw = array("q", (pair[0] for pair in tokens))
        raw.append(tokens[-1][1])
        return raw

    def _check(
        self,
        hashes: list[int],
        digests: bytes,
        extra_key: Optional[str],
        salt: Optional[str],
    ) -> None:
        """The core's own hash must be the beginning of ours."""
        if len(digests) != len(hashes) * DIGEST_BYTES:
            raise ValueError(
                f"the tree core named {len(hashes)} pages of {self._page_size} tokens "
                f"and gave tokens for {len(digests) // DIGEST_BYTES}"
            )
        if extra_key is None and salt is None and hashes:
            ours = int.from_bytes(digests[:8], "big", signed=True)
            if ours != hashes[0]:
                raise ValueError(
                    f"the tree core hashes a page to {hashes[0]}, this registry to "
                    f"{ours}: it was made for another page hash"
                )


def _flush(run: Optional[tuple[type, int, list[bytes]]], out: list[Operation]) -> None:
    if run is not None:
        digests = b"".join(run[2])
        if digests:
            out.append(run[0](run[1], digests))
