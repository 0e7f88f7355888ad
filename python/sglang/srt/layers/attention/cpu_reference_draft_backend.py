# SPDX-License-Identifier: Apache-2.0
"""Attention of a draft model that drafts several tokens in a row, on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch
from sglang.srt.layers.attention.cpu_reference_backend import (
    CpuReferenceAttnBackend,
    plan_blocks,
)

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


def branch_slots(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: list[int],
    *,
    topk: int,
    num_steps: int,
    page_size: int,
) -> torch.Tensor:
    """Slots that each draft branch reads: the committed tokens, then its own.

    Args:
        req_to_token: ``[requests, max_context]``.
        req_pool_indices: ``[batch]``.
        seq_lens: committed tokens of each request.
        topk: branches a request.
        num_steps: tokens a branch.
        page_size: with several branches and pages above 1 upstream gives each
            branch pages of its own, the first of which repeats the tokens of
            the last committed page.

    Returns:
        ``[batch * topk, max(seq_lens) + num_steps]`` int64, 0 where a branch is
        shorter.
    """
    longest = max(seq_lens) + num_steps
    table = torch.zeros(len(seq_lens) * topk, longest, dtype=torch.int64)
    for i, (row, length) in enumerate(
        zip(req_pool_indices.tolist(), seq_lens, strict=True)
    ):
        for branch in range(topk):
            start = length + branch * num_steps
            if page_size > 1 and topk > 1:
                tail = length % page_size
                pages = (tail + num_steps + page_size - 1) // page_size
                start = length + branch * pages * page_size
            slots = table[i * topk + branch]
            slots[:length] = req_to_token[row, :length]
            slots[length : length + num_steps] = req_to_token[
                row, start : start + num_steps
            ]
    return table


class CpuReferenceMultiStepDraftBackend:
    """One plan a draft step, all made before the first.

    Args:
        model_runner: the draft model's runner.
        topk: branches a request.
        speculative_num_steps: tokens drafted; the last needs no forward pass.
    """

    def __init__(
        self, model_runner: ModelRunner, topk: int, speculative_num_steps: int
    ) -> None:
        self.topk = topk
        self.speculative_num_steps = speculative_num_steps
        self.page_size = model_runner.page_size
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.attn_backends = [
            CpuReferenceAttnBackend(model_runner)
            for _ in range(speculative_num_steps - 1)
        ]

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        if forward_batch.forward_mode.is_idle():
            return
        seq_lens = forward_batch.seq_lens.tolist()
        table = branch_slots(
            self.req_to_token_pool.req_to_token,
            forward_batch.req_pool_indices,
            seq_lens,
            topk=self.topk,
            num_steps=self.speculative_num_steps,
            page_size=self.page_size,
        )
        branches = torch.arange(len(table))
        lengths = [length for length in seq_lens for _ in range(self.topk)]
        for step, backend in enumerate(self.attn_backends):
            backend.forward_metadata = plan_blocks(
                q_lens=[1] * len(lengths),
                k_lens=[length + step + 1 for length in lengths],
                req_to_token=table,
                req_pool_indices=branches,
            )


def draft_backends(factory, *, multi_step: bool) -> dict[str, Callable]:
    """What upstream's ``DraftBackendFactory`` looks up a backend's name in.

    Args:
        factory: the factory.
        multi_step: whether the backend of the drafting steps is asked for, and
            not that of the draft model's extension.
    """
    runner = factory.draft_model_runner
    if multi_step:
        return {
            "cpu_reference": lambda: (
                "cpu_reference",
                CpuReferenceMultiStepDraftBackend(
                    runner, factory.topk, factory.speculative_num_steps
                ),
            )
        }
    return {"cpu_reference": lambda: ("cpu_reference", CpuReferenceAttnBackend(runner))}
