# SPDX-License-Identifier: Apache-2.0
"""What became of the drafts of one step, request by request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional, Sequence

import numpy as np
from sglang.srt.speculative.observability.drafts import (
    FILLER_ORIGIN,
    MODEL_ORIGIN,
    StepDrafts,
)


@dataclass(slots=True)
class Outcome:
    """One request's verification, once the scheduler has processed it.

    Args:
        accepted: draft tokens that were accepted and kept, in their order.
        committed: tokens that the request gained, the bonus token included.
        reserved: KV slots allocated to it beyond its committed tokens, now.
    """

    accepted: Sequence[int]
    committed: int
    reserved: int


@dataclass(slots=True)
class RequestStep:
    """Counts of one request in one step. Lists are by draft position, from 1.

    ``sum(drafted_at) == drafted >= accepted`` always, and ``accepted_at`` is 1 for
    the first ``accepted`` positions, which all lie within ``drafted_at``.
    """

    drafted: int
    accepted: int
    drafted_at: list[int]
    # Counts by origin (see drafts.origin_labels).
    drafted_from: dict[int, int]
    accepted_from: list[int]
    kv_written: int
    kv_overwritten: int
    reserved: int
    unneeded: int


@dataclass(slots=True)
class StepCounts:
    """Counts of one step: a ``RequestStep`` a request, None for a discarded one.

    A request is discarded if it had finished or was retracted before the result
    came; its drafts and KV writes count in the totals here.
    """

    requests: list[Optional[RequestStep]] = field(default_factory=list)
    discarded_requests: int = 0
    discarded_tokens: int = 0
    discarded_kv: int = 0


def count_step(noted: StepDrafts, outcomes: Sequence[Optional[Outcome]]) -> StepCounts:
    """Counts a step from what was drafted and what was accepted.

    Args:
        noted: the step's drafts.
        outcomes: one a request of the batch, in its order; None: discarded.
    """
    n, width = len(outcomes), noted.width
    trees = noted.resolve(n)
    # By request and depth in one pass; column 0 holds roots and places without one.
    flat = trees.depths + np.arange(n)[:, None] * width
    table = np.bincount(flat.ravel(), minlength=n * width).reshape(n, width)
    by_depth = table.tolist()
    need = max(width, noted.draft_slots)
    counts = StepCounts()
    for row, outcome in enumerate(outcomes):
        drafted_at = by_depth[row][1:]
        while drafted_at and not drafted_at[-1]:
            drafted_at.pop()
        drafted = sum(drafted_at)
        if outcome is None:
            counts.requests.append(None)
            counts.discarded_requests += 1
            counts.discarded_tokens += drafted
            counts.discarded_kv += width
            continue
        step = RequestStep(
            drafted=drafted,
            accepted=len(outcome.accepted),
            drafted_at=drafted_at,
            drafted_from={MODEL_ORIGIN: drafted} if drafted else {},
            accepted_from=trees.accepted_origins(row, outcome.accepted),
            kv_written=width,
            kv_overwritten=max(0, width - outcome.committed),
            reserved=outcome.reserved,
            unneeded=max(0, outcome.reserved - need),
        )
        if trees.origins is not None:
            step.drafted_from = trees.origins_of(row)
            _offer_accepted_fillers(step)
        counts.requests.append(step)
    return counts


def _offer_accepted_fillers(step: RequestStep) -> None:
    """A filler that was accepted was a draft after all, so that rates stay true.

    Fillers are the last of an accepted path: nothing stands below them.
    """
    count = step.accepted_from.count(FILLER_ORIGIN)
    if not count:
        return
    step.drafted += count
    step.drafted_from[FILLER_ORIGIN] = count
    for position in range(step.accepted - count, step.accepted):
        if position == len(step.drafted_at):
            step.drafted_at.append(0)
        step.drafted_at[position] += 1
