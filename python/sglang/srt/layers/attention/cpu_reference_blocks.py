# SPDX-License-Identifier: Apache-2.0
"""Attention on PyTorch's fused operator, for the reference CPU platform.

The planner turns a batch into *blocks* of requests that run as one call of
``scaled_dot_product_attention`` over keys that are gathered and padded.

Grouped-query attention is folded into the query axis: the ``G`` query heads that
share a key head become ``G`` times as many query rows of that head. PyTorch would
otherwise materialise every key ``G`` times on a CPU.
"""

from __future__ import annotations

from typing import Optional, Sequence

import msgspec
import torch
from torch.nn.functional import scaled_dot_product_attention

# A block may hold at most this many times the key rows its requests have.
# Padding rows are gathered and multiplied like real ones, a block less is one
# kernel launch per layer less.
_MAX_PADDING = 1.5


class Block(msgspec.Struct, frozen=True):
    """Requests that run as one attention call.

    Attributes:
        rows: ``[n * q_len]`` int64 rows of the flat query tensor, or a slice
            when they are consecutive.
        slots: ``[n, k_len]`` int64 KV-pool slots, padded with slot 0 (the
            pool's padding slot).
        q_len: query rows a request.
        mask: bool, broadcastable to ``[n, q_len, k_len]``, True where a query
            row sees a key row; None when it sees all of them.
    """

    rows: torch.Tensor | slice
    slots: torch.Tensor
    q_len: int
    mask: Optional[torch.Tensor]


def group_by_length(q_lens: Sequence[int], k_lens: Sequence[int]) -> list[list[int]]:
    """Partition requests into blocks of equal ``q_len`` and similar ``k_len``.

    Args:
        q_lens: query rows of each request.
        k_lens: key rows of each request.

    Returns:
        Lists of request indices. Within a list all ``q_lens`` agree and padding
        every request to the longest ``k_len`` costs at most half again the key
        rows there are. Requests without query rows are left out.
    """
    order = sorted(
        (i for i, q_len in enumerate(q_lens) if q_len > 0),
        key=lambda i: (q_lens[i], -k_lens[i], i),
    )
    groups: list[list[int]] = []
    real = 0
    for i in order:
        if groups and q_lens[groups[-1][0]] == q_lens[i]:
            group = groups[-1]
            padded = k_lens[group[0]] * (len(group) + 1)
            if padded <= _MAX_PADDING * (real + k_lens[i]):
                group.append(i)
                real += k_lens[i]
                continue
        groups.append([i])
        real = k_lens[i]
    return groups


def plan_blocks(
    *,
    q_lens: Sequence[int],
    k_lens: Sequence[int],
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    causal: bool = True,
    tail_masks: Optional[Sequence[torch.Tensor]] = None,
) -> list[Block]:
    """Plan one forward pass.

    Request ``i`` owns ``q_lens[i]`` consecutive rows of the flat query tensor,
    which are the last ``q_lens[i]`` of its ``k_lens[i]`` tokens.

    Args:
        q_lens: query rows of each request.
        k_lens: key rows of each request, the query's own included.
        req_to_token: ``[requests, max_context]`` slot of each token.
        req_pool_indices: ``[n]`` row of each request in ``req_to_token``.
        causal: whether a query row sees only rows up to its own. Encoder
            attention sees all.
        tail_masks: for each request a bool ``[q_len, q_len]`` saying which of
            the last ``q_len`` tokens each query row sees (a draft tree); the
            tokens before them are seen by all. Overrides ``causal``.

    Returns:
        Blocks that cover every query row exactly once.
    """
    starts = [0]
    for q_len in q_lens:
        starts.append(starts[-1] + q_len)
    blocks = []
    for group in group_by_length(q_lens, k_lens):
        q_len, k_len = q_lens[group[0]], k_lens[group[0]]
        lens = torch.tensor([k_lens[i] for i in group])
        members = torch.tensor(group)
        slots = req_to_token[req_pool_indices[members], :k_len].to(torch.int64)
        columns = torch.arange(k_len)
        real = columns < lens[:, None]
        ragged = any(k_lens[i] != k_len for i in group)
        if ragged:
            slots = slots.masked_fill(~real, 0)
        if tail_masks is not None:
            mask = _tree_mask([tail_masks[i] for i in group], lens, k_len)
        elif causal and q_len > 1:
            limit = lens[:, None] - q_len + torch.arange(q_len)
            mask = columns <= limit[:, :, None]
        elif ragged:
            mask = real[:, None, :]
        else:
            mask = None
        if len(group) == group[-1] - group[0] + 1 and group == sorted(group):
            rows = slice(starts[group[0]], starts[group[-1] + 1])
        else:
            first = torch.tensor([starts[i] for i in group])
            rows = (first[:, None] + torch.arange(q_len)).flatten()
        blocks.append(Block(rows=rows, slots=slots, q_len=q_len, mask=mask))
    return blocks


def _tree_mask(
    tails: Sequence[torch.Tensor], lens: torch.Tensor, k_len: int
) -> torch.Tensor:
    """Widen draft-tree masks ``[q_len, q_len]`` to ``[n, q_len, k_len]``."""
    tail = torch.stack(list(tails))
    n, q_len, _ = tail.shape
    # Column c of the widened mask is column c - (len - q_len) of the tail.
    offset = torch.arange(k_len) - (lens[:, None] - q_len)
    inside = tail.gather(
        2, offset.clamp(0, q_len - 1)[:, None, :].expand(n, q_len, k_len)
    )
    return (offset < 0)[:, None, :] | (inside & (offset < q_len)[:, None, :])


def attend_blocks(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    blocks: Sequence[Block],
    *,
    scale: float,
    out: torch.Tensor,
) -> torch.Tensor:
    """Run the blocks of one layer; see ``cpu_reference_backend.attend``."""
    kv_heads = key_cache.shape[1]
    q_heads, head_dim = query.shape[1:]
    fold = q_heads // kv_heads
    for block in blocks:
        n, k_len = block.slots.shape
        q_len = block.q_len
        q = query[block.rows].view(n, q_len, kv_heads, fold, head_dim)
        q = q.permute(0, 2, 3, 1, 4).reshape(n, kv_heads, fold * q_len, head_dim)
        flat = block.slots.flatten()
        k = key_cache.index_select(0, flat).view(n, k_len, kv_heads, head_dim)
        v = value_cache.index_select(0, flat).view(n, k_len, kv_heads, -1)
        mask = block.mask
        if mask is not None:
            if mask.shape[1] > 1:
                mask = mask.repeat(1, fold, 1)
            mask = mask[:, None]
        o = scaled_dot_product_attention(
            q,
            k.transpose(1, 2).to(q.dtype),
            v.transpose(1, 2).to(q.dtype),
            attn_mask=mask,
            scale=scale,
        )
        o = o.view(n, kv_heads, fold, q_len, -1).permute(0, 3, 1, 2, 4)
        out[block.rows] = o.reshape(n * q_len, q_heads, -1)
    return out
