# SPDX-License-Identifier: Apache-2.0
"""Accepted tokens of a round whose result was processed before the next drafts.

Under overlap the n-gram worker appends the last round's accepted tokens to each
request's output, because the result that holds them is still queued. Where the
scheduler processed that result early, the output holds them already and the
context of the drafts would end with them twice. The model verifies every draft,
so only acceptance suffers.
"""

from __future__ import annotations

from typing import Any, Sequence


def without_processed(batch: Any, accept_lens: Sequence[int]) -> list[int]:
    """Number of accepted tokens still missing from each request's ``output_ids``.

    The KV cache covers all tokens of a request but the last. A request whose ids
    go past its KV by one is complete; one with a queued result is not.

    Args:
        batch: a decode batch before drafting; reads ``reqs`` and ``seq_lens_cpu``.
        accept_lens: tokens the last round accepted, for each request.
    """
    if batch.seq_lens_cpu is None:  # no host copy of lengths: nothing was drained
        return list(accept_lens)
    lengths = batch.seq_lens_cpu.tolist()
    return [
        0 if len(req.origin_input_ids) + len(req.output_ids) > length else accepted
        for req, length, accepted in zip(batch.reqs, lengths, accept_lens, strict=True)
    ]
