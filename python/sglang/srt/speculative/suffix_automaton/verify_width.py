# SPDX-License-Identifier: Apache-2.0
"""Verify as many tokens a request as the longest draft of the batch has.

Upstream fills every draft up to ``--speculative-num-draft-tokens`` and verifies the
padding too. Where no captured graph fixes the batch's shape a step can be as wide as
its drafts are. All ranks see the same drafts, so their steps are equally wide.

What leaves the worker is padded again: results, and what the next step is told of
this one, have upstream's width.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import torch
from sglang.srt.speculative.ngram_worker import NGRAMWorker


class _Views:
    """Looked up by batch size as upstream's lists of views are."""

    def __init__(self, view: Callable[[int], torch.Tensor]):
        self._view = view

    def __getitem__(self, batch_size: int) -> torch.Tensor:
        return self._view(batch_size)


class FittedVerifyWorker(NGRAMWorker):
    """An NGRAM worker whose ``draft_token_num`` follows ``draft_trees`` within a step.

    ``follows_drafts`` says whether it may; a subclass sets it.
    """

    follows_drafts = True

    def draft_trees(self, batch: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Drafts for a decode batch of n requests, W places each.

        Returns:
            tokens int64 ``[n, W]``, mask bool ``[n, W, W]``, and the places in use,
            the root's included, int ``[n]``.
        """
        raise NotImplementedError

    def alloc_memory_pool(self, **kwargs: Any) -> None:
        self.full_width = self.draft_token_num
        super().alloc_memory_pool(**kwargs)

    def _init_preallocated_tensors(self) -> None:
        super()._init_preallocated_tensors()

        def rows(buffer: torch.Tensor) -> _Views:
            """``[n, width]`` at the start of a buffer."""
            flat = buffer.view(-1)
            return _Views(
                lambda n: flat[: n * self.draft_token_num].view(n, self.draft_token_num)
            )

        def cells(buffer: torch.Tensor, power: int) -> _Views:
            return _Views(lambda n: buffer[: n * self.draft_token_num**power])

        self.retrieve_indexes_batch = rows(self.retrieve_indexes)
        self.retrieve_next_token_batch = rows(self.retrieve_next_token)
        self.retrieve_next_sibling_batch = rows(self.retrieve_next_sibling)
        self.positions_batch = cells(self.positions, 1)
        self.draft_tokens_batch = cells(self.draft_tokens, 1)
        self.tree_mask_batch = cells(self.tree_mask, 2)

    def _may_narrow(self, batch: Any) -> bool:
        """Whether nothing that reads this step's result expects the full width."""
        backend = self.model_runner.attn_backend
        return (
            self.follows_drafts
            # Other backends size their plans and captured graphs by the flag.
            and getattr(backend, "verifies_any_width", False)
            # Log probabilities and hidden states are sliced by the flag, too.
            and not batch.return_logprob
            and not batch.return_hidden_states
        )

    def _prepare_for_speculative_decoding(self, batch: Any) -> None:
        # Upstream takes its buffers before it asks for drafts; their size is
        # known only after.
        if batch.forward_mode.is_decode():
            tokens, mask, sizes = self.draft_trees(batch)
            if self._may_narrow(batch):
                width = max(1, int(sizes.max()))
                tokens, mask = tokens[:, :width], mask[:, :width, :width]
                self.draft_token_num = width
            self._drafted = (tokens.reshape(-1), mask.reshape(-1))
        super()._prepare_for_speculative_decoding(batch)

    def _prepare_draft_tokens(self, batch: Any) -> tuple[np.ndarray, np.ndarray]:
        """Drafts for a decode batch: int64 [n * width], bool [n * width * width]."""
        drafted, self._drafted = self._drafted, None
        return drafted

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = super().forward_batch_generation(batch, *args, **kwargs)
        finally:
            width, self.draft_token_num = self.draft_token_num, self.full_width
        if width < self.full_width:
            pad_result(result, len(batch.reqs), width, self.full_width)
        return result


def pad_result(result: Any, n: int, width: int, full_width: int) -> None:
    """Give a result of ``n`` requests and ``width`` places upstream's width."""
    accepted = result.next_token_ids
    padded = accepted.new_zeros(n, full_width)
    padded[:, :width] = accepted.view(n, width)
    result.next_token_ids = padded.flatten()
    told = result.next_draft_input
    told.accept_tokens = result.next_token_ids
    told.draft_token_num = full_width
    told.num_tokens_per_req = full_width
    told.num_tokens_for_logprob_per_req = full_width
