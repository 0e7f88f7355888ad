# SPDX-License-Identifier: Apache-2.0
"""A request's one touch of its path."""

from __future__ import annotations

from typing import Optional

import numpy as np

from .records import PROVISIONAL
from .reuse_model import OUTPUT_LEVELS, SIZE_LEVELS

# Distance between the classes of two neighbouring hit levels.
PER_HIT = SIZE_LEVELS * OUTPUT_LEVELS
_NO_HASHES = np.empty(0, np.uint64)


class Touch:
    """One request's touch of its path.

    seq, time: number and event time of the touch. size: level of its unknown
    blocks. output: level of its output tokens, valid once ``final``. start,
    base, hashes: page hashes of the path from page ``start`` on, for the nodes
    that the request is going to insert. known: pages of the path that had a record,
    resident or ghost. node_id: its deepest node so far. end: pages of the path to the
    end of that node, once an insert ended there. admitted: the request ran.
    """

    __slots__ = (
        "admitted",
        "base",
        "end",
        "epoch",
        "final",
        "hashes",
        "known",
        "node_id",
        "output",
        "priority",
        "seq",
        "size",
        "start",
        "time",
    )

    def __init__(self, seq: int, time: float, epoch: int, priority: int) -> None:
        self.seq = seq
        self.time = time
        self.epoch = epoch
        self.priority = priority
        self.size = self.output = 0
        self.final = self.admitted = False
        self.start = self.base = self.known = self.end = 0
        self.hashes = _NO_HASHES
        self.node_id: Optional[int] = None

    def class_of(self, hits: int) -> int:
        """Class of a page with ``hits``, marked while the output is unknown."""
        cls = hits * PER_HIT + self.size * OUTPUT_LEVELS + self.output
        return cls if self.final else cls + PROVISIONAL
