# SPDX-License-Identifier: Apache-2.0
"""What an interval's samples say."""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.observability.spec_report.scrape import Scrape

# Stages of a decode step, and of them those that verification does not need.
STEP_STAGES = (
    "lookup",
    "draft",
    "tree_build",
    "verify",
    "draft_extend",
    "index_update",
)
OVERHEAD_STAGES = tuple(stage for stage in STEP_STAGES if stage != "verify")


@dataclass(frozen=True)
class Stage:
    """One stage: how often, how long together (seconds), and on which clock."""

    name: str
    clock: str
    count: float
    seconds: float

    @property
    def mean_ms(self) -> float:
        """Milliseconds of one."""
        return 1e3 * self.seconds / self.count if self.count else 0.0


@dataclass(frozen=True)
class Position:
    """One draft position: request steps that offered it, tokens, acceptances."""

    position: int
    offered: float
    drafted: float
    accepted: float

    @property
    def rate(self) -> float:
        """Share of the steps offering this position that accepted it."""
        return self.accepted / self.offered if self.offered else 0.0


@dataclass(frozen=True)
class Source:
    """Drafts of one source and match length."""

    source: str
    match_length: str
    drafted: float
    accepted: float

    @property
    def rate(self) -> float:
        """Accepted over drafted tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(frozen=True)
class Analysis:
    """Everything the report shows."""

    steps: float
    request_steps: float
    drafted: float
    accepted: float
    discarded: float
    kv_written: float
    kv_overwritten: float
    reserved: float
    unneeded: float
    width: float
    stages: tuple[Stage, ...]
    positions: tuple[Position, ...]
    sources: tuple[Source, ...]
    accepted_p95: float

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a request gains in a step, the bonus token included."""
        return 1 + self.accepted / self.request_steps if self.request_steps else 1.0

    @property
    def drafted_per_step(self) -> float:
        """Draft tokens offered to a request in a step."""
        return self.drafted / self.request_steps if self.request_steps else 0.0

    @property
    def accept_rate(self) -> float:
        """Accepted over drafted tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def verify_seconds(self) -> float:
        """Seconds of verification."""
        return sum(s.seconds for s in self.stages if s.name == "verify")

    @property
    def overhead_seconds(self) -> float:
        """Seconds of a step's stages that plain decoding does not have."""
        return sum(s.seconds for s in self.stages if s.name in OVERHEAD_STAGES)


def analyse(interval: Scrape) -> Analysis:
    """Reduces an interval's samples.

    Scrapes are not atomic across processes; counts that came in between two reads
    of one scrape can differ by a step.
    """
    request_steps = interval.total("step_accepted_tokens_count")
    discarded_steps = interval.total("discarded_request_steps_total")
    written = interval.total("kv_slots_written_total")
    verified = request_steps + discarded_steps
    return Analysis(
        steps=interval.total("steps_total"),
        request_steps=request_steps,
        drafted=interval.total("drafted_tokens_total"),
        accepted=interval.total("accepted_tokens_total"),
        discarded=interval.total("discarded_tokens_total"),
        kv_written=written,
        kv_overwritten=interval.total("kv_slots_overwritten_total"),
        reserved=interval.total("kv_reserve_slot_steps_total"),
        unneeded=interval.total("kv_reserve_unneeded_slot_steps_total"),
        width=written / verified if verified else 0.0,
        stages=_stages(interval),
        positions=_positions(interval),
        sources=_sources(interval),
        accepted_p95=_quantile(interval, "step_accepted_tokens", 0.95),
    )


def _stages(interval: Scrape) -> tuple[Stage, ...]:
    seconds = interval.by(("stage", "clock"), "stage_seconds_sum")
    counts = interval.by(("stage", "clock"), "stage_seconds_count")
    order = {stage: i for i, stage in enumerate(STEP_STAGES)}
    names = sorted(seconds, key=lambda key: (order.get(key[0], len(order)), key))
    return tuple(
        Stage(*key, count=counts.get(key, 0.0), seconds=seconds[key])
        for key in names
        if counts.get(key)
    )


def _positions(interval: Scrape) -> tuple[Position, ...]:
    offered, drafted, accepted = (
        interval.by(("position",), f"position_{name}_total")
        for name in ("offered_steps", "drafted_tokens", "accepted_tokens")
    )
    return tuple(
        Position(
            int(key[0]), offered[key], drafted.get(key, 0.0), accepted.get(key, 0.0)
        )
        for key in sorted(offered, key=lambda key: int(key[0]))
        if offered[key]
    )


def _sources(interval: Scrape) -> tuple[Source, ...]:
    keys = ("source", "match_length")
    drafted = interval.by(keys, "source_drafted_tokens_total")
    accepted = interval.by(keys, "source_accepted_tokens_total")

    def order(key: tuple[str, str]) -> tuple:
        start = key[1].split("-")[0].rstrip("+")
        return key[0], int(start) if start.isdigit() else -1

    return tuple(
        Source(*key, drafted=drafted[key], accepted=accepted.get(key, 0.0))
        for key in sorted(drafted, key=order)
        if drafted[key]
    )


def _quantile(interval: Scrape, name: str, share: float) -> float:
    """Upper end of the bucket in which the quantile lies."""
    buckets = interval.by(("le",), f"{name}_bucket")
    bounds = sorted((float(key[0]), count) for key, count in buckets.items())
    if not bounds or not bounds[-1][1]:
        return 0.0
    wanted = share * bounds[-1][1]
    return next(bound for bound, count in bounds if count >= wanted)
