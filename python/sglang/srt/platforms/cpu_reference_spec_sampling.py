# SPDX-License-Identifier: Apache-2.0
"""Sampling while verifying a draft, on the reference CPU platform.

Upstream accepts a drafted token by rejection against the target's distribution.
Here the target's token is drawn first, at every node, and the tree is followed
as long as it contains the draw: the output has the target's distribution
whatever was drafted, and one draw a token is all the randomness there is.
"""

from __future__ import annotations

import torch
from sglang.srt.platforms.cpu_reference_spec_ops import TreeLinks, follow_tree


def top_k_renorm(probs: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Keep each row's ``top_k`` largest probabilities and rescale the row to 1.

    Args:
        probs: ``[rows, vocabulary]``.
        top_k: ``[rows]``; values from the vocabulary's size on keep everything.
    """
    vocabulary = probs.shape[1]
    keep = top_k.clamp(1, vocabulary).long()
    ordered = probs.sort(dim=-1, descending=True)
    drop = torch.arange(vocabulary) >= keep[:, None]
    return _rescale(probs.shape, ordered.values.masked_fill(drop, 0), ordered.indices)


def top_p_renorm(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keep each row's most likely tokens up to mass ``top_p`` and rescale to 1.

    The token that crosses ``top_p`` is kept, so a row keeps at least one.
    """
    ordered = probs.sort(dim=-1, descending=True)
    before = ordered.values.cumsum(-1) - ordered.values
    drop = before > top_p[:, None]
    return _rescale(probs.shape, ordered.values.masked_fill(drop, 0), ordered.indices)


def _rescale(
    shape: torch.Size, values: torch.Tensor, indices: torch.Tensor
) -> torch.Tensor:
    values = values / values.sum(-1, keepdim=True)
    return values.new_zeros(shape).scatter_(-1, indices, values)


def verify_tree_sampling(
    *,
    candidates: torch.Tensor,
    target_probs: torch.Tensor,
    uniform_samples: torch.Tensor,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    **rest: torch.Tensor,
) -> None:
    """Draw the target's token at each node and follow the draft tree.

    The names are those of upstream's keyword arguments.

    Args:
        candidates: ``[batch, n]`` drafted tokens.
        target_probs: ``[batch, n, vocabulary]``.
        uniform_samples: ``[batch, n]`` in ``[0, 1)``, one draw a node.
        predicts, accept_index, accept_token_num: out, see ``follow_tree``.
        threshold_single, threshold_acc: upstream's lossy acceptance.
        rest: the tree's links as ``retrive_index``, ``retrive_next_token`` and
            ``retrive_next_sibling``; what the drawing does not need is ignored.

    Raises:
        ValueError: a threshold below 1, which accepts tokens that the target did
            not draw.
    """
    if threshold_single < 1.0 or threshold_acc < 1.0:
        raise ValueError(
            "--speculative-accept-threshold-single "
            f"{threshold_single} and --speculative-accept-threshold-acc "
            f"{threshold_acc} are not supported on the reference CPU platform; "
            "allowed: 1.0."
        )
    mass = target_probs.double().cumsum(-1)
    # Scaled by the row's own sum: a draw below 1 then always falls inside it.
    draws = uniform_samples.double()[..., None] * mass[..., -1:]
    tokens = torch.searchsorted(mass, draws, right=True).squeeze(-1)
    links = TreeLinks(
        rest["retrive_index"], rest["retrive_next_token"], rest["retrive_next_sibling"]
    )
    follow_tree(
        links,
        candidates,
        tokens.clamp_(max=target_probs.shape[-1] - 1),
        predicts=predicts,
        accept_index=accept_index,
        accepted_drafts=accept_token_num,
    )
