# SPDX-License-Identifier: Apache-2.0
"""The decision: overlap a batch's result with the next forward pass, or process it first.

Knows neither clocks nor devices: times come in as numbers, decisions go out. Every
rank holds one and calls ``decide`` for the same steps in the same order. Only one
rank is given times (``observe``); what follows from them is proposed there
(``proposals``) and takes effect when every rank is told (``apply``). So a rank's
answer depends only on counted steps and on what all were told.
"""

from __future__ import annotations

from typing import Iterable, NamedTuple

from sglang.srt.managers.dynamic_overlap.config import DynamicOverlapConfig
from sglang.srt.managers.dynamic_overlap.estimate import StepCost, saving

PHASES = ("prefill", "decode")
PREFILL, DECODE = range(2)
# Sizes are told apart by their number of binary digits: 1, 2-3, 4-7, ...
BUCKETS = 33

HEURISTIC = "heuristic"
MEASURED = "measured"
PROBE = "probe"
# Answers, by whether to overlap: made once, since there is one for every step.
_HEURISTIC, _MEASURED, _PROBE = (
    ((False, rule), (True, rule)) for rule in (HEURISTIC, MEASURED, PROBE)
)

# What one state measured stands while the other measures what it did then, but for
# this share of a step. Traffic changes faster than probes come.
DRIFT = 0.25
# Once a kind of step is known, one in so many is timed, and all while probing: timing
# costs several times what deciding does.
SAMPLED = 4
# Weight of a new share of wasted rows, over that of a new time.
WASTE_WEIGHT = 0.05


class Proposal(NamedTuple):
    """``overlap`` for batches of ``phase`` whose size has ``bucket`` binary digits."""

    phase: int
    bucket: int
    overlap: bool


class Averages(NamedTuple):
    """Averages of a step in seconds.

    Attributes:
        forward: forward pass that the launch leaves for the host to use.
        schedule, process: host time that could run under it.
        launch: host time that cannot.
    """

    forward: float
    schedule: float
    launch: float
    process: float


def smallest(bucket: int) -> int:
    """Smallest size of a bucket. Bucket 0 is for sizes that ranks do not share."""
    return 1 << (bucket - 1) if bucket else 0


class _Kind:
    """What is known of one phase and bucket."""

    __slots__ = (
        "phase",
        "bucket",
        "overlap",
        "measured",
        "steps",
        "launched",
        "changed_at",
        "probe_at",
        "probe_left",
        "costs",
        "waste",
        "overlapped",
        "hideable",
        "host",
    )

    def __init__(self, phase: int, bucket: int, overlap: bool, weight: float):
        self.phase = phase
        self.bucket = bucket
        self.overlap = overlap
        self.measured = False
        self.steps = self.changed_at = self.probe_left = self.probe_at = 0
        self.launched = 0
        # [False]: processed at once; [True]: overlapped.
        self.costs = (StepCost(weight), StepCost(weight))
        # Seen only while overlapping.
        self.waste, self.overlapped = 0.0, 0
        # What the state in use measured when the other was last tried.
        self.hideable = self.host = 0.0

    def pair(self, least: int) -> tuple[StepCost, StepCost] | None:
        """(overlapped, drained), one standing in for the other while it is new."""
        drained, overlapped = self.costs
        if drained.count >= least:
            return (overlapped if overlapped.count >= least else drained), drained
        return (overlapped, overlapped) if overlapped.count >= least else None

    def check_drift(self, now: StepCost, other: StepCost) -> None:
        """Forgets what the state not in use measured if times are no longer those."""
        launch, forward = now.launch, now.forward
        left = forward - launch
        host = now.schedule + now.process
        most = DRIFT * (host + (launch if left < 0 else forward))
        if (
            abs(host - self.host) > most
            or abs((left if left > 0 else 0.0) - self.hideable) > most
        ):
            other.forget()


class OverlapDecisionMaker:
    """Decides by measured saving, with hysteresis, a minimum dwell and probes.

    Args:
        config: settings.
        synchronous: launching a batch blocks until its result is there, so that no
            work can run under it (CPU). Only for the heuristic: measured times show
            it as well.
    """

    def __init__(self, config: DynamicOverlapConfig, synchronous: bool = False):
        self.config = config
        self.synchronous = synchronous
        self.switches = 0
        self.proposals: dict[tuple[int, int], Proposal] = {}
        self._kinds = [
            [self._new_kind(phase, bucket) for bucket in range(BUCKETS)]
            for phase in range(len(PHASES))
        ]

    def _new_kind(self, phase: int, bucket: int) -> _Kind:
        large = not bucket or smallest(bucket) >= self.config.heuristic_batch_size
        overlap = large and not self.synchronous
        return _Kind(phase, bucket, overlap, self.config.ema_weight)

    def decide(self, phase: int, size: int) -> tuple[bool, str]:
        """Whether to overlap the result of a batch, and by what rule.

        Args:
            phase: PREFILL or DECODE.
            size: the batch's tokens (prefill) or rows (decode); 0 if the ranks that
                must decide alike do not all know it.
        """
        kind = self._kinds[phase][size.bit_length()]
        kind.steps += 1
        if not kind.measured:
            return _HEURISTIC[kind.overlap]
        if kind.probe_left:
            kind.probe_left -= 1
            return _PROBE[not kind.overlap]
        if kind.steps >= kind.probe_at and self.config.probe_interval_steps:
            kind.probe_at = kind.steps + self.config.probe_interval_steps
            kind.probe_left = self.config.probe_steps - 1
            return _PROBE[not kind.overlap]
        return _MEASURED[kind.overlap]

    def wants_times(self, phase: int, size: int) -> bool:
        """Whether the batch about to be launched should be timed."""
        kind = self._kinds[phase][size.bit_length()]
        kind.launched += 1
        return not kind.launched % SAMPLED or not kind.measured or kind.probe_left > 0

    def observe(
        self,
        phase: int,
        size: int,
        overlapped: bool,
        schedule: float,
        launch: float,
        forward: float,
        process: float,
        waste: float = 0.0,
    ) -> None:
        """Take in the times of one finished step; see estimate.py for the terms."""
        kind = self._kinds[phase][size.bit_length()]
        cost = kind.costs[overlapped]
        cost.add(schedule, launch, forward, process)
        if overlapped:
            # Ends are rare and the share is all or nothing where a batch has one row.
            kind.overlapped += 1
            if waste != kind.waste:
                weight = max(WASTE_WEIGHT * self.config.ema_weight, 1 / kind.overlapped)
                kind.waste += weight * (waste - kind.waste)
        if overlapped == kind.overlap:
            other = kind.costs[not overlapped]
            if other.count:
                kind.check_drift(cost, other)
        else:
            in_use = kind.costs[kind.overlap]
            kind.hideable, kind.host = in_use.hideable, in_use.host
        pair = kind.pair(self.config.min_samples)
        if pair is None:
            return
        threshold = self.config.min_gain
        if kind.overlap:
            threshold -= self.config.hysteresis
        wanted = saving(*pair, kind.waste) >= threshold
        if kind.measured:
            if wanted == kind.overlap:
                # The wish may have passed before it was carried out.
                if self.proposals:
                    self.proposals.pop((phase, kind.bucket), None)
                return
            if kind.steps - kind.changed_at < self.config.min_dwell_steps:
                return
        self.proposals[phase, kind.bucket] = Proposal(phase, kind.bucket, wanted)

    def apply(self, proposals: Iterable[Proposal]) -> None:
        """Put decisions into effect; telling the same twice changes nothing."""
        for proposal in proposals:
            kind = self._kinds[proposal.phase][proposal.bucket]
            self.proposals.pop((proposal.phase, proposal.bucket), None)
            if kind.measured and kind.overlap == proposal.overlap:
                continue
            if kind.overlap != proposal.overlap:
                self.switches += 1
            kind.overlap = proposal.overlap
            other = kind.costs[not proposal.overlap]
            kind.hideable, kind.host = other.hideable, other.host
            kind.changed_at = kind.steps
            kind.probe_left = 0
            if not kind.measured:
                kind.measured = True
                kind.probe_at = kind.steps + self.config.probe_interval_steps

    def state(self, phase: int, size: int) -> bool:
        """Whether batches of this kind are overlapped now, probes aside."""
        return self._kinds[phase][size.bit_length()].overlap

    def averages(self, phase: int, size: int) -> Averages | None:
        """What is known of this kind of step; None until there are samples."""
        kind = self._kinds[phase][size.bit_length()]
        pair = kind.pair(self.config.min_samples)
        if pair is None:
            return None
        overlapped, drained = pair
        return Averages(
            overlapped.hideable,
            drained.schedule,
            kind.costs[kind.overlap].launch or drained.launch,
            drained.process,
        )

    def kinds(self) -> Iterable[tuple[int, int]]:
        """(phase, smallest size) of every kind that has been decided for."""
        for phase, row in enumerate(self._kinds):
            for bucket, kind in enumerate(row):
                if kind.steps:
                    yield phase, smallest(bucket)
