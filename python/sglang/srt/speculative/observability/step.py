# SPDX-License-Identifier: Apache-2.0
"""What became of the drafts of one step, request by request."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import Iterable, Optional, Sequence

import numpy as np
from sglang.srt.speculative.observability.drafts import (
    FILLER_ORIGIN,
    MODEL_ORIGIN,
    ORIGINS,
    StepDrafts,
    Trees,
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
    """Counts of one step.

    ``requests`` holds one entry a request, None where it is discarded: it had
    finished or was retracted before the result came. The sums are over the
    requests that are not; the drafts and KV writes of the others are counted apart.
    """

    requests: list[Optional[RequestStep]]
    drafted_at: list[int]
    # Counts of requests that accepted k tokens, were offered k, k deep.
    accepted_hist: list[int]
    drafted_hist: list[int]
    depth_hist: list[int]
    drafted_from: dict[int, int]
    accepted_from: dict[int, int]
    discarded_requests: int
    discarded_tokens: int
    discarded_kv: int


def count_step(noted: StepDrafts, outcomes: Sequence[Optional[Outcome]]) -> StepCounts:
    """Counts a step from what was drafted and what was accepted.

    Args:
        noted: the step's drafts.
        outcomes: one a request of the batch, in its order; None: discarded.
    """
    n, width = len(outcomes), noted.width
    trees = noted.resolve(n)
    accepted_from = [
        trees.accepted_origins(row, outcome.accepted) if outcome is not None else []
        for row, outcome in enumerate(outcomes)
    ]
    table = _nodes_by_depth(trees.depths)
    fillers = [row for row, path in enumerate(accepted_from) if FILLER_ORIGIN in path]
    _offer_accepted_fillers(table, fillers, accepted_from)
    drafted = table.sum(axis=1)
    deepest = (table > 0).sum(axis=1)
    drafted_from = _drafted_origins(trees, drafted)
    for row in fillers:
        drafted_from[row][FILLER_ORIGIN] = accepted_from[row].count(FILLER_ORIGIN)
    live = np.array([outcome is not None for outcome in outcomes])
    requests: list[Optional[RequestStep]] = []
    need = max(width, noted.draft_slots)
    for outcome, nodes, depth, count, origins, path in zip(
        outcomes,
        table.tolist(),
        deepest.tolist(),
        drafted.tolist(),
        drafted_from,
        accepted_from,
        strict=True,
    ):
        if outcome is None:
            requests.append(None)
            continue
        requests.append(
            RequestStep(
                drafted=count,
                accepted=len(path),
                drafted_at=nodes[:depth],
                drafted_from=origins,
                accepted_from=path,
                kv_written=width,
                kv_overwritten=max(0, width - outcome.committed),
                reserved=outcome.reserved,
                unneeded=max(0, outcome.reserved - need),
            )
        )
    gone = n - int(live.sum())
    lengths = [len(path) for path, is_live in zip(accepted_from, live) if is_live]
    return StepCounts(
        requests=requests,
        drafted_at=table[live].sum(axis=0)[: deepest[live].max(initial=0)].tolist(),
        accepted_hist=np.bincount(np.array(lengths, np.int64)).tolist(),
        drafted_hist=np.bincount(drafted[live]).tolist(),
        depth_hist=np.bincount(deepest[live]).tolist(),
        drafted_from=_summed(o for o, is_live in zip(drafted_from, live) if is_live),
        accepted_from=dict(Counter(chain.from_iterable(accepted_from))),
        discarded_requests=gone,
        discarded_tokens=int(drafted[~live].sum()),
        discarded_kv=gone * width,
    )


def _nodes_by_depth(depths: np.ndarray) -> np.ndarray:
    """Nodes of each request at depths 1, 2, ...: int64 [n, W - 1]."""
    n, width = depths.shape
    flat = depths + np.arange(n)[:, None] * width
    table = np.bincount(flat.ravel(), minlength=n * width).reshape(n, width)
    # Column 0 holds roots and places without a draft.
    return table[:, 1:]


def _offer_accepted_fillers(
    table: np.ndarray, rows: list[int], accepted_from: list[list[int]]
) -> None:
    """A filler that was accepted was a draft after all, so that rates stay true.

    Fillers are the last of an accepted path: nothing stands below them.
    """
    for row in rows:
        path = accepted_from[row]
        table[row, len(path) - path.count(FILLER_ORIGIN) : len(path)] += 1


def _drafted_origins(trees: Trees, drafted: np.ndarray) -> list[dict[int, int]]:
    """Drafted nodes of each request by their origin."""
    if trees.origins is None:
        return [{MODEL_ORIGIN: count} if count else {} for count in drafted.tolist()]
    n = len(trees.depths)
    rows = np.arange(n)[:, None] * ORIGINS
    nodes = (trees.origins + rows)[trees.depths > 0]
    counts = np.bincount(nodes, minlength=n * ORIGINS)
    out: list[dict[int, int]] = [{} for _ in range(n)]
    for place in np.flatnonzero(counts).tolist():
        row, origin = divmod(place, ORIGINS)
        out[row][origin] = int(counts[place])
    return out


def _summed(counts: Iterable[dict[int, int]]) -> dict[int, int]:
    out: dict[int, int] = {}
    for one in counts:
        for key, value in one.items():
            out[key] = out.get(key, 0) + value
    return out
