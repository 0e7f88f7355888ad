# SPDX-License-Identifier: Apache-2.0
"""The operators of speculative decoding in C++, from ``sgl-kernel-ext``.

Functions, arguments and results are those of ``cpu_reference_spec_plain``. Tensors
are handed over as NumPy views, which cost a fraction of a DLPack exchange.
"""

from __future__ import annotations

from typing import Optional

import torch
from sgl_kernel_ext import cpu_ops
from sglang.srt.platforms.cpu_reference_spec_plain import TreeLinks


def links_from_mask(
    mask: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    positions: torch.Tensor,
    out: TreeLinks,
) -> None:
    cpu_ops.links_from_mask(
        mask.contiguous().numpy(),
        seq_lens.numpy(),
        positions=positions.numpy(),
        out=_views(out),
    )


def beam_to_tree(
    chosen: torch.Tensor,
    expanded: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    topk: int,
    positions: torch.Tensor,
    mask: torch.Tensor,
    full_mask: bool,
    out: TreeLinks,
) -> None:
    cpu_ops.beam_to_tree(
        chosen.numpy(),
        expanded.numpy(),
        seq_lens.numpy(),
        topk=topk,
        positions=positions.numpy(),
        mask=mask.numpy(),
        full_mask=full_mask,
        out=_views(out),
    )


def follow_tree(
    links: TreeLinks,
    drafts: torch.Tensor,
    wanted: torch.Tensor,
    *,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accepted_drafts: torch.Tensor,
) -> None:
    cpu_ops.follow_tree(
        _views(links),
        drafts.numpy(),
        wanted.numpy(),
        predicts=predicts.numpy(),
        accept_index=accept_index.numpy(),
        accepted_drafts=accepted_drafts.numpy(),
    )


def sample_tree(
    links: TreeLinks,
    drafts: torch.Tensor,
    probs: torch.Tensor,
    draws: torch.Tensor,
    *,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accepted_drafts: torch.Tensor,
) -> None:
    cpu_ops.sample_tree(
        _views(links),
        drafts.numpy(),
        probs.float().contiguous().numpy(),
        draws.float().contiguous().numpy(),
        predicts=predicts.numpy(),
        accept_index=accept_index.numpy(),
        accepted_drafts=accepted_drafts.numpy(),
    )


def top_k_renorm(probs: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    out = torch.empty(probs.shape)
    cpu_ops.top_k_renorm(probs.float().contiguous().numpy(), top_k.numpy(), out.numpy())
    return out


def top_p_renorm(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    out = torch.empty(probs.shape)
    limits = top_p.float().contiguous()
    cpu_ops.top_p_renorm(
        probs.float().contiguous().numpy(), limits.numpy(), out.numpy()
    )
    return out


def extend_cache_locs(
    *,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    **_: object,
) -> torch.Tensor:
    count = int((end_offset - start_offset).sum())
    out = torch.empty(count, dtype=torch.int64)
    cpu_ops.read_spans(
        req_to_token.numpy(),
        req_pool_indices.numpy(),
        start_offset.numpy(),
        end_offset.numpy(),
        out.numpy(),
    )
    return out


def assign_req_to_token(
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    cpu_ops.write_spans(
        req_to_token.numpy(), rows.numpy(), starts.numpy(), ends.numpy(), slots.numpy()
    )


def draft_cache_locs(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    width: int,
    positions: Optional[torch.Tensor] = None,
) -> None:
    cpu_ops.draft_slots(
        req_to_token.numpy(),
        req_pool_indices.numpy(),
        seq_lens.numpy(),
        width,
        out_cache_loc.numpy(),
        None if positions is None else positions.numpy(),
    )


def front_cache_locs(
    num_front: torch.Tensor, out_cache_loc: torch.Tensor, front: torch.Tensor
) -> None:
    cpu_ops.pack_front(num_front.numpy(), out_cache_loc.numpy(), front.numpy())


def accepted_cache_locs(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accepted: torch.Tensor
) -> None:
    cpu_ops.pack_accepted(accept_index.numpy(), out_cache_loc.numpy(), accepted.numpy())


def bonus_tokens(
    accept_tokens: torch.Tensor,
    accept_lens: torch.Tensor,
    bonus: torch.Tensor,
    stride: int,
) -> None:
    cpu_ops.last_accepted(
        accept_tokens.numpy(), accept_lens.numpy(), stride, bonus.numpy()
    )


def branch_slots(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: list[int],
    *,
    topk: int,
    num_steps: int,
    page_size: int,
) -> torch.Tensor:
    longest = max(seq_lens) + num_steps
    table = torch.empty(len(seq_lens) * topk, longest, dtype=torch.int32)
    cpu_ops.branch_slots(
        req_to_token.numpy(),
        req_pool_indices.numpy(),
        torch.tensor(seq_lens).numpy(),
        topk=topk,
        steps=num_steps,
        page_size=page_size,
        out=table.numpy(),
    )
    return table


def _views(links: TreeLinks) -> list:
    return [part.numpy() for part in links]
