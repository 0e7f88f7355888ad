# SPDX-License-Identifier: Apache-2.0
"""One insertion of a request's committed tokens into the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.mem_cache.radix_cache import RadixKey

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache


def committed_len(req: Req) -> int:
    """Leading tokens of a request whose KV is final: known and already computed.

    Drafts lie behind ``kv_committed_len``. Plain decoding counts the token of a
    pass in flight as committed; its id is the last one known, so one less than the
    known ids bounds it.
    """
    return min(req.owned_kv_len(), req.seqlen - 1)


def would_rewrite(tree_cache: UnifiedRadixCache, req: Req, up_to: int) -> bool:
    """Whether ``publish`` with ``up_to`` would change the request's row.

    It does where the tree has pages of its own for tokens that it does not hold for
    this request yet. Otherwise the tree takes the request's pages as they are.
    """
    req.refresh_fill_ids()
    core = tree_cache.tree_core
    key = RadixKey(
        req.full_untruncated_fill_ids[:up_to],
        req.extra_key,
        is_bigram=core.is_eagle,
        cache_salt=req.cache_salt,
    )
    return core.match_full_device_prefix(key)[0] > req.kv.cache_protected_len


def publish(tree_cache: UnifiedRadixCache, req: Req, up_to: int) -> tuple[int, int]:
    """Put the KV of the first ``up_to`` tokens into the tree.

    The tree takes the pages over that it did not have; pages of the request for
    tokens that it had are freed, and the request's row points to the tree's. The
    request's lock moves to the end of the inserted path. Not to be called while a
    pass is in flight that goes on reading this row, unless the row stays as it is
    (``would_rewrite``), nor inside a free group.

    Args:
        tree_cache: a full-attention unified tree, of either core.
        req: holds KV and has not finished.
        up_to: tokens, at most ``committed_len(req)``.

    Returns:
        Tokens that came under the tree's protection, and how many of them, the last
        ones, the tree did not have before.
    """
    kv = req.kv
    allocator = tree_cache.token_to_kv_pool_allocator
    assert not req.finished() and kv.holds_kv, f"nothing to publish of {req.rid}"
    assert allocator.free_group is None, "frees are deferred"
    protected, free = kv.cache_protected_len, allocator.available_size()
    req.refresh_fill_ids()
    tree_cache.checkpoint(req, up_to=up_to)
    gained = kv.cache_protected_len - protected
    duplicates = allocator.available_size() - free
    return gained, max(0, gained - duplicates)
