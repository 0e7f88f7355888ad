# SPDX-License-Identifier: Apache-2.0
"""Sampling while verifying a draft, on the reference CPU platform."""

from __future__ import annotations

import torch
from sglang.srt.platforms.cpu_reference_spec_ops import TreeLinks, sample_tree
from sglang.srt.platforms.cpu_reference_spec_ops import top_k_renorm as top_k_renorm
from sglang.srt.platforms.cpu_reference_spec_ops import top_p_renorm as top_p_renorm


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
    """Sample while verifying a draft.

    Upstream accepts a drafted token by rejection against the target's distribution.
    Here the target's token is drawn first, at every node, and the tree is followed
    as long as it contains the draw: the output has the target's distribution
    whatever was drafted, and one draw a token is all the randomness there is.
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
    links = TreeLinks(
        rest["retrive_index"], rest["retrive_next_token"], rest["retrive_next_sibling"]
    )
    sample_tree(
        links,
        candidates,
        target_probs,
        uniform_samples,
        predicts=predicts,
        accept_index=accept_index,
        accepted_drafts=accept_token_num,
    )
