# SPDX-License-Identifier: Apache-2.0
"""When a running request is shared, and what a retracted one keeps.

All decisions follow token counts and the sequence of batches, so tensor-parallel
ranks decide alike without talking.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable, Iterable, Optional

from sglang.srt.mem_cache.spec_radix_sharing.metrics import SharingMetrics
from sglang.srt.mem_cache.spec_radix_sharing.publish import (
    committed_len,
    publish,
    would_rewrite,
)
from sglang.srt.mem_cache.spec_radix_sharing.settings import (
    DRAIN_AFTER_INTERVALS,
    SharingSettings,
)
from sglang.srt.mem_cache.spec_radix_sharing.spans import (
    Sharing,
    SpanIndex,
    common_prefix,
    namespace_of,
)

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

# What a retracted request keeps is cut into leaves, so that eviction can take its
# end without its beginning: of so many tokens, but at most so many.
KEPT_LEAF_TOKENS = 64
MAX_KEPT_LEAVES = 16


class RadixSharer:
    """One scheduler's early sharing.

    Args:
        settings: interval, threshold and what the tree can key.
        tree_cache: a full-attention unified tree.
        queued_batches: returns the batches that were launched and whose results were
            not processed yet.
        running: returns the requests that decode.
        metrics: counters.
    """

    def __init__(
        self,
        settings: SharingSettings,
        tree_cache: UnifiedRadixCache,
        queued_batches: Callable[[], Iterable[ScheduleBatch]],
        running: Callable[[], Iterable[Req]],
        metrics: SharingMetrics,
    ):
        self.settings = settings
        self.metrics = metrics
        self.spans = SpanIndex()
        self._tree_cache = tree_cache
        self._queued_batches = queued_batches
        self._running = running
        # A request waited too long for a natural point.
        self._overdue = False
        # Committed tokens that a page of keys takes.
        self._least = settings.page_size + settings.uncached_tail

    # ---- running requests

    def on_result(self, batch: ScheduleBatch) -> None:
        """The result of ``batch`` was processed; share what is due.

        A request of a batch whose result is still queued is left alone if its row would
        change: that pass may still read it.
        """
        if not batch.forward_mode.is_decode():
            return
        self._overdue = False
        due = [req for req in batch.reqs if self._is_due(req)]
        if not due:
            return
        flying = self._flying()
        wait = DRAIN_AFTER_INTERVALS * self.settings.interval
        for req in due:
            if self._wanted(req) and not self._share(req, flying):
                behind = req.kv.kv_committed_len - req.kv.cache_protected_len
                self._overdue |= behind >= max(wait, self._least)

    def on_queued(self, req: Req) -> None:
        """``req`` begins to wait: what it continues is shared now, whatever is due.

        Of several requests that generated the same, the one with most of it.
        """
        if req.is_retracted or not has_plain_ids(req):
            return
        best, owner = 0, None
        for other in self._running():
            gain = self._gain(other, req)
            if gain > best:
                best, owner = gain, other
        if owner is None:
            return
        if self._share(owner, self._flying()):
            self.metrics.arrival_insertions.inc(1)
        else:
            owner.radix_sharing.due_at = 0  # at the next natural point, for others

    def _gain(self, owner: Req, req: Req) -> int:
        """Tokens of ``req`` that the tree will hold once ``owner``, which generated some
        of them, is shared; 0 if that changes nothing."""
        sharing, text = owner.radix_sharing, req.origin_input_ids
        start = owner.kv.cache_protected_len
        if sharing is None or start >= len(text):
            return 0
        place = start - len(owner.origin_input_ids)
        if (
            place >= 0
            and owner.output_ids[place : place + 1] != text[start : start + 1]
        ):
            return 0  # the usual case: another text
        if sharing.outdated or not lives(owner) or not is_shareable(owner):
            return 0
        if namespace_of(owner) != namespace_of(req):
            return 0
        end = min(len(text), committed_len(owner))
        if self.settings.cacheable(end) <= start:
            return 0
        owner.refresh_fill_ids()
        common = common_prefix(text, owner.full_untruncated_fill_ids, 0, end)
        if self.settings.cacheable(common) <= start:
            return 0
        accepts = mean_accept_length(owner) >= self.settings.accept_threshold
        return common if accepts else 0

    def _flying(self) -> set[int]:
        """Requests, by identity, that a launched pass runs whose result is queued."""
        return {id(req) for queued in self._queued_batches() for req in queued.reqs}

    def wants_drain(self, batch: Optional[ScheduleBatch]) -> bool:
        """Whether the queued result is to be processed before ``batch`` is launched.

        True only where a result is queued and ``batch`` would run an overdue request;
        a prefill batch gives running requests their natural point by itself.
        """
        if not (self._overdue and self.settings.may_drain) or batch is None:
            return False
        mode = batch.forward_mode
        if not (mode.is_decode() or mode.is_mixed()) or not self._queued_batches():
            return False
        self.metrics.drains.inc(1)
        return True

    def _is_due(self, req: Req) -> bool:
        sharing = req.radix_sharing
        if sharing is None:
            sharing = req.radix_sharing = Sharing(self._next_due(req))
        return req.kv.kv_committed_len >= sharing.due_at

    def _next_due(self, req: Req) -> int:
        return req.kv.cache_protected_len + max(self.settings.interval, self._least)

    def _wanted(self, req: Req) -> bool:
        """Whether a due request is to be shared; otherwise when to ask again."""
        if not lives(req):
            return False
        if not is_shareable(req) or req.radix_sharing.outdated:
            req.radix_sharing.due_at = math.inf
            return False
        if mean_accept_length(req) < self.settings.accept_threshold:
            req.radix_sharing.due_at = req.kv.kv_committed_len + self.settings.interval
            return False
        return True

    def _share(self, req: Req, flying: set[int]) -> bool:
        """Insert what is committed. False where that has to wait for the queued pass."""
        up_to = committed_len(req)
        if self.settings.cacheable(up_to) > req.kv.cache_protected_len:
            if id(req) in flying and self._has_duplicate(req, up_to):
                return False
            self.metrics.shared_tokens.inc(self._publish(req, up_to))
        req.radix_sharing.due_at = self._next_due(req)
        req.radix_sharing.duplicate = False
        return True

    def _has_duplicate(self, req: Req, up_to: int) -> bool:
        # Looked up once: what the tree has will be there at the natural point too.
        sharing = req.radix_sharing
        if not sharing.duplicate:
            sharing.duplicate = would_rewrite(self._tree_cache, req, up_to)
        return sharing.duplicate

    def _publish(self, req: Req, up_to: int) -> int:
        gained, new = publish(self._tree_cache, req, up_to)
        self.metrics.insertions.inc(1)
        req.radix_sharing.add(req.kv.cache_protected_len, new)
        if req.radix_sharing.start is not None:
            self.spans.add(req)
        return gained

    # ---- retracted requests

    def keep(self, req: Req) -> None:
        """``req`` is about to be retracted and holds its KV: the tree keeps it.

        What it keeps can be evicted as soon as the request has given its lock back,
        end first.
        """
        sharing = req.radix_sharing
        if (
            sharing is None  # no decode result yet: its prefill may be in flight
            or sharing.outdated
            or not req.kv.holds_kv
            or req.finished()
            or not is_shareable(req)
        ):
            return
        end, start = committed_len(req), req.kv.cache_protected_len
        if self.settings.cacheable(end) <= start:
            return
        piece = max(
            min(self.settings.interval, KEPT_LEAF_TOKENS),
            self._least,
            -(-(end - start) // MAX_KEPT_LEAVES),
        )
        # An insertion that starts a backup to HiCache's host tier locks the path until
        # the copy is done: this retraction would free nothing and cause the next.
        # Tokens that count as inserted before start none.
        kv = req.kv
        kv.cache_inserted_len = max(kv.cache_inserted_len, self.settings.cacheable(end))
        kept = 0
        for up_to in [*range(start + piece, end, piece), end]:
            if self.settings.cacheable(up_to) > req.kv.cache_protected_len:
                kept += self._publish(req, up_to)
        self.metrics.kept_tokens.inc(kept)

    # ---- who is served

    def on_admitted(self, req: Req, cached: int) -> None:
        """``req`` is about to be prefilled with ``cached`` tokens from the cache."""
        sharing = req.radix_sharing
        if req.is_retracted and sharing is not None:
            self.metrics.saved_tokens.inc(sharing.covered(cached))
            # Its prefill will insert what it generated so far, as upstream's does.
            self.spans.discard(req)
            req.radix_sharing = None
            return
        served = self.spans.served(req, cached)
        if served:
            self.metrics.served_tokens.inc(served)

    # ---- weights

    def on_weights_changed(self, requests: Iterable[Req]) -> None:
        """New weights are served; ``requests`` hold KV of the old ones.

        What they have computed by now may reach the tree only as it does upstream,
        when they finish. A retraction lets go of it, and they start anew.
        """
        for req in requests:
            if req.radix_sharing is None:
                req.radix_sharing = Sharing(math.inf)
            req.radix_sharing.outdated = True


def has_plain_ids(req: Req) -> bool:
    """Whether the token ids of ``req`` say what its input is."""
    return req.input_embeds is None and req.positional_embed_overrides is None


def lives(req: Req) -> bool:
    """Whether ``req`` holds KV and goes on."""
    ends = req.finished() or req.is_retracted or req.to_finish is not None
    return not ends and req.kv.holds_kv


def is_shareable(req: Req) -> bool:
    """Whether the tree may hold generated tokens of ``req`` under its token ids."""
    return has_plain_ids(req) and not (
        req.skip_radix_cache_insert
        or req.beam_group is not None
        # A streaming session keeps the row itself.
        or (req.session is not None and req.session.streaming)
    )


def mean_accept_length(req: Req) -> float:
    """Output tokens a verification; 1 where nothing was verified."""
    if not req.spec_verify_ct:
        return 1.0
    return len(req.output_ids) / req.spec_verify_ct
