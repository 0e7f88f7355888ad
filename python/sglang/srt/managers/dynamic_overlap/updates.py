# SPDX-License-Identifier: Apache-2.0
"""How a changed decision reaches every rank: with the input that is broadcast anyway.

Every pass of the loop, the rank that receives input shares it with the others before
any of them schedules. A change rides along and takes effect in the same pass on all.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

import msgspec
from sglang.srt.managers.dynamic_overlap.decision import Proposal


class OverlapUpdate(msgspec.Struct):
    """Decisions that take effect when this is received."""

    proposals: tuple[tuple[int, int, bool], ...]


def make_update(proposals: Sequence[Proposal]) -> OverlapUpdate:
    """Returns what carries ``proposals``."""
    return OverlapUpdate(tuple(tuple(p) for p in proposals))


def split_updates(received: list[Any]) -> tuple[list[Proposal], list[Any]]:
    """Returns (decisions to apply in their order, the other input)."""
    found: list[Proposal] = []
    others = []
    for item in received:
        if type(item) is OverlapUpdate:
            found.extend(Proposal(*p) for p in item.proposals)
        else:
            others.append(item)
    return found, others


def route_updates(
    received: Optional[list[Any]], local: Optional[list[Any]]
) -> tuple[Optional[list[Any]], Optional[list[Any]]]:
    """Moves updates from a rank's own input to what all ranks are sent.

    Under data-parallel attention, a rank's own input reaches the ranks of its group
    only. What is not a request for work goes from the first rank to all of them.
    """
    if received is None or not local:
        return received, local
    updates = [item for item in local if type(item) is OverlapUpdate]
    if not updates:
        return received, local
    return (
        [*received, *updates],
        [item for item in local if type(item) is not OverlapUpdate],
    )
