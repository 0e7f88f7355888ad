# SPDX-License-Identifier: Apache-2.0
"""Keeps the proposer's texts in step with the requests of decode batches.

A request's text is its prompt and output. It begins at the request's first decode
step, survives retraction (the request is the same object when it comes back) and
ends when the request has finished or was aborted, at the next decode step. Texts
belong to request *objects*: a request id that is used again is another object,
so it cannot meet the text of its predecessor.

What the proposer holds decides what it gives up at its bounds, so nothing here may
depend on when an object is collected, which differs between ranks: requests are
referenced until they have finished, or have been out of the batch for
``LONGEST_ABSENCE`` steps (one that is aborted while it waits never finishes).
"""

from __future__ import annotations

import itertools
from typing import Any, Sequence

import numpy as np

# Decode steps; a retracted request that waits longer begins anew when it returns.
LONGEST_ABSENCE = 2048


class _Entry:
    """What is known of one request."""

    __slots__ = ("begun", "given_up", "handle", "req", "seen", "shared")

    def __init__(self, handle: int, req: Any):
        self.handle = handle
        self.req = req
        self.seen = 0  # the last step that had it in its batch
        # Its text began since the request last entered a batch, or before.
        self.begun = False
        # The output was put into the shared store when its text first began.
        self.shared = False
        # The proposer dropped it to stay within its bounds while it was decoding;
        # it goes without drafts until it next enters a batch.
        self.given_up = False


def namespace_of(req: Any) -> str:
    """Requests draft from each other's outputs only within one namespace.

    Upstream appends the LoRA adapter's id to ``extra_key``, where another key could
    read the same; here each part stands behind its length, so that no choice of them
    makes another choice's name.
    """
    parts = (req.extra_key or "", req.cache_salt or "", req.lora_id or "")
    return "".join(f"{len(part)}:{part}" for part in parts) if any(parts) else ""


def pending_tokens(req: Any, verified: Sequence[int], length: int) -> Sequence[int]:
    """Tokens of the last round that are not in ``req.output_ids`` yet.

    Under overlap a round's result may be processed before or after the next
    drafts are made. The length of the KV cache tells which: it covers all tokens
    but the last.

    Args:
        verified: what the last round accepted, its bonus token included.
        length: tokens of the request whose KV is in the cache.
    """
    known = len(req.origin_input_ids) + len(req.output_ids)
    return () if known >= length + 1 else verified


class RequestTexts:
    """The texts of all requests of one worker.

    Every decision follows the sequence of batches alone, so equal ranks keep
    equal texts.
    """

    def __init__(self, proposer: Any):
        self._proposer = proposer
        self._handles = itertools.count()
        self._entries: dict[int, _Entry] = {}  # by id() of their request
        self._step = 0
        self._last: list[int] = []  # keys of the last batch
        self._parked: set[int] = set()  # keys of requests out of the batch

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Forgets all requests and all that the proposer holds."""
        self._proposer.reset()
        self._entries.clear()
        self._last.clear()
        self._parked.clear()

    def update(
        self, reqs: Sequence[Any], pending: Sequence[Sequence[int]]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
        """Brings the texts of a decode batch up to date, but for their new tokens.

        Args:
            reqs: the requests of the batch.
            pending: for each, tokens that follow ``output_ids`` (see
                ``pending_tokens``).

        Returns:
            Handles (uint64), new tokens (int64) and offsets into them (int64) for
            the proposer's step, and the places in the batch they belong to;
            requests that go without drafts are left out.
        """
        entries = self._enter(reqs)
        handles = np.fromiter((e.handle for e in entries), np.uint64, len(entries))
        lengths = self._proposer.lengths(handles).tolist()
        places, tokens, offsets = [], [], [0]
        for i, (req, entry, extra) in enumerate(
            zip(reqs, entries, pending, strict=True)
        ):
            prompt = req.origin_input_ids_unpadded
            total = len(prompt) + len(req.output_ids) + len(extra)
            known = lengths[i]
            if known < 0 and entry.begun:
                entry.given_up = True
            if entry.given_up:
                continue
            if not len(prompt) <= known <= total:
                self._begin(entry, req, extra)
                # Beginning may have pushed others out, even of this batch.
                lengths = self._proposer.lengths(handles).tolist()
            else:
                start = known - len(prompt)
                tokens += req.output_ids[start:]
                tokens += extra[max(0, start - len(req.output_ids)) :]
            places.append(i)
            offsets.append(len(tokens))
        return self._present(handles, lengths, places, tokens, offsets, entries)

    def _present(self, handles, lengths, places, tokens, offsets, entries):
        """Leaves out requests that were pushed out while others began."""
        kept, flat, bounds = [], [], [0]
        for j, i in enumerate(places):
            if lengths[i] < 0:
                entries[i].given_up = True
                continue
            kept.append(i)
            flat += tokens[offsets[j] : offsets[j + 1]]
            bounds.append(len(flat))
        return (
            handles[kept] if kept else handles[:0],
            np.array(flat, np.int64),
            np.array(bounds, np.int64),
            kept,
        )

    def _begin(self, entry: _Entry, req: Any, extra: Sequence[int]) -> None:
        prompt = req.origin_input_ids_unpadded
        text = np.concatenate(
            [
                np.asarray(prompt, np.int64),
                np.asarray(req.output_ids, np.int64),
                np.asarray(extra, np.int64),
            ]
        )
        self._proposer.begin(
            entry.handle,
            text,
            shared_from=len(text) if entry.shared else len(prompt),
            namespace=namespace_of(req),
        )
        entry.begun = entry.shared = True

    def _enter(self, reqs: Sequence[Any]) -> list[_Entry]:
        """Entries of a batch; ends those of requests that will not come back."""
        keys = [id(req) for req in reqs]
        self._parked.update(self._last)
        self._parked.difference_update(keys)
        present = set(self._last)
        self._step += 1
        for key in sorted(self._parked, key=lambda k: self._entries[k].handle):
            entry = self._entries[key]
            if entry.req.finished() or self._step - entry.seen > LONGEST_ABSENCE:
                self._drop(key)
        entries = []
        for key, req in zip(keys, reqs, strict=True):
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(next(self._handles), req)
            elif key not in present:  # it was retracted and comes back
                entry.begun = entry.given_up = False
            entry.seen = self._step
            entries.append(entry)
        self._last = keys
        return entries

    def _drop(self, key: int) -> None:
        self._parked.discard(key)
        entry = self._entries.pop(key)
        if entry.req.finished() and not entry.given_up:
            self._append_end(entry)
        self._proposer.end(entry.handle)

    def _append_end(self, entry: _Entry) -> None:
        """Gives the proposer what the last round of a finished request added.

        Under overlap the request was in one more batch, which brought it; where each
        result is processed before the next drafts, none did.
        """
        known = self._proposer.lengths([entry.handle]).tolist()[0]
        start = known - len(entry.req.origin_input_ids_unpadded)
        if start < 0:
            return  # the proposer dropped the text
        rest = entry.req.output_ids_through_stop[start:]
        if len(rest):
            self._proposer.append(entry.handle, rest)
