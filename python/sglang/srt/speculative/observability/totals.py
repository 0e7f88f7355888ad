# SPDX-License-Identifier: Apache-2.0
"""Sums over steps: of a server between two exports, or of one request."""

from __future__ import annotations

from dataclasses import dataclass, field

from sglang.srt.speculative.observability.step import RequestStep, StepCounts


def add_at(counts: list[int], more: list[int]) -> None:
    """Adds ``more`` to ``counts`` place by place, lengthening it."""
    if len(counts) < len(more):
        counts.extend([0] * (len(more) - len(counts)))
    for i, count in enumerate(more):
        counts[i] += count


def add_one(counts: list[int], index: int) -> None:
    """Adds 1 at ``index``, lengthening the list."""
    if len(counts) <= index:
        counts.extend([0] * (index + 1 - len(counts)))
    counts[index] += 1


@dataclass(slots=True)
class Totals:
    """Counts of requests' steps.

    ``accepted_hist[k]`` and ``drafted_hist[k]`` are how many request steps accepted
    and drafted k tokens; what was accepted and offered at a position follows from
    them, since a path is accepted from its start: see ``accepted_at`` and
    ``offered_at``.
    """

    request_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_hist: list[int] = field(default_factory=list)
    drafted_hist: list[int] = field(default_factory=list)
    # By the depth of the tree: request steps.
    depth_hist: list[int] = field(default_factory=list)
    drafted_at: list[int] = field(default_factory=list)
    # Origin -> tokens (see drafts.origin_labels).
    drafted_from: dict[int, int] = field(default_factory=dict)
    accepted_from: dict[int, int] = field(default_factory=dict)
    kv_written: int = 0
    kv_overwritten: int = 0
    # Slots times steps that they were held.
    reserved: int = 0
    unneeded: int = 0

    @property
    def rejected(self) -> int:
        """Drafted tokens that were not accepted."""
        return self.drafted - self.accepted

    @property
    def accepted_at(self) -> list[int]:
        """Tokens accepted at each draft position, from 1."""
        return _at_least(self.accepted_hist)

    @property
    def offered_at(self) -> list[int]:
        """Request steps whose tree reached each draft position, from 1."""
        return _at_least(self.depth_hist)

    def add(self, step: RequestStep) -> None:
        """Adds one request's step."""
        self.request_steps += 1
        self.drafted += step.drafted
        self.accepted += step.accepted
        add_one(self.accepted_hist, step.accepted)
        add_one(self.drafted_hist, step.drafted)
        add_one(self.depth_hist, len(step.drafted_at))
        add_at(self.drafted_at, step.drafted_at)
        for origin, count in step.drafted_from.items():
            self.drafted_from[origin] = self.drafted_from.get(origin, 0) + count
        for origin in step.accepted_from:
            self.accepted_from[origin] = self.accepted_from.get(origin, 0) + 1
        self.kv_written += step.kv_written
        self.kv_overwritten += step.kv_overwritten
        self.reserved += step.reserved
        self.unneeded += step.unneeded

    def add_all(self, counts: StepCounts) -> None:
        """Adds the step of every request that is not discarded."""
        for step in counts.requests:
            if step is not None:
                self.request_steps += 1
                self.drafted += step.drafted
                self.accepted += step.accepted
                self.kv_written += step.kv_written
                self.kv_overwritten += step.kv_overwritten
                self.reserved += step.reserved
                self.unneeded += step.unneeded
        self._merge_counts(counts)

    def merge(self, more: Totals) -> None:
        """Adds other sums."""
        for name in ("request_steps", "drafted", "accepted", *_KV):
            setattr(self, name, getattr(self, name) + getattr(more, name))
        self._merge_counts(more)

    def _merge_counts(self, more: Totals | StepCounts) -> None:
        for name in ("accepted_hist", "drafted_hist", "depth_hist", "drafted_at"):
            add_at(getattr(self, name), getattr(more, name))
        for name in ("drafted_from", "accepted_from"):
            sums = getattr(self, name)
            for origin, count in getattr(more, name).items():
                sums[origin] = sums.get(origin, 0) + count


_KV = ("kv_written", "kv_overwritten", "reserved", "unneeded")


@dataclass(slots=True)
class ServerTotals:
    """``Totals`` of all requests, and what is nobody's.

    ``discarded_*``: work for requests that had ended or were retracted before it
    was done; their KV slots count as written and overwritten.
    """

    live: Totals = field(default_factory=Totals)
    steps: int = 0
    discarded_request_steps: int = 0
    discarded: int = 0
    discarded_kv: int = 0
    # Slots reserved beyond committed tokens after the last step, and those of them
    # beyond what a step may write.
    reserved_now: int = 0
    unneeded_now: int = 0

    def add(self, counts: StepCounts) -> None:
        """Adds one step."""
        self.steps += 1
        self.discarded_request_steps += counts.discarded_requests
        self.discarded += counts.discarded_tokens
        self.discarded_kv += counts.discarded_kv
        self.reserved_now = self.unneeded_now = 0
        self.live.add_all(counts)
        for step in counts.requests:
            if step is not None:
                self.reserved_now += step.reserved
                self.unneeded_now += step.unneeded

    def merge(self, more: ServerTotals) -> None:
        """Adds later sums."""
        self.live.merge(more.live)
        self.steps += more.steps
        self.discarded_request_steps += more.discarded_request_steps
        self.discarded += more.discarded
        self.discarded_kv += more.discarded_kv
        self.reserved_now = more.reserved_now
        self.unneeded_now = more.unneeded_now


def _at_least(hist: list[int]) -> list[int]:
    """From counts of exactly k to counts of at least k, for k = 1, 2, ..."""
    out, total = [], 0
    for count in reversed(hist[1:]):
        total += count
        out.append(total)
    out.reverse()
    return out
