# SPDX-License-Identifier: Apache-2.0
"""Attention of a draft model that drafts several tokens in a row, on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch
from sglang.srt.layers.attention.cpu_reference_backend import CpuReferenceAttnBackend
from sglang.srt.platforms.cpu_reference_spec_ops import branch_slots

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


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
            backend.forward_metadata = backend.plan(
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
