# SPDX-License-Identifier: Apache-2.0
"""Rows to tables, targets and plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import plot as plotting
from common import table

from .cost import BUSY
from .prompts import Traffic

Rows = Sequence[dict[str, Any]]
FIRST_COLUMNS = (
    table.Column("mode", "mode", text=True),
    table.Column("hit_ratio", "from cache", table.percent),
    table.Column("least_hit", "least of a listed prompt", table.percent),
    table.Column("ttft_p50_s", "TTFT p50 s", table.number(3)),
    table.Column("ttft_max_s", "max s", table.number(3)),
    table.Column("ttft_of_cold", "p50 / cold", table.ratio),
    table.Column("burst_hit_ratio", "burst: from cache", table.percent),
    table.Column("burst_ttft_mean_s", "burst: TTFT mean s", table.number(3)),
    table.Column("warm_s", "warmed in s", table.number(1)),
    table.Column("same_answers", "same answers", lambda same: "yes" if same else "NO", text=True),
)
COST_COLUMNS = (
    table.Column("warming", "warming", text=True),
    table.Column("requests", "requests", table.number(0)),
    table.Column("ttft_p50_s", "TTFT p50 s", table.number(3)),
    table.Column("ttft_p90_s", "p90 s", table.number(3)),
    table.Column("ttft_p99_s", "p99 s", table.number(3)),
    table.Column("p50_ratio", "p50 ratio", table.ratio),
    table.Column("p90_ratio", "p90 ratio", table.ratio),
    table.Column("p99_ratio", "p99 ratio", table.ratio),
    table.Column("warmed_tokens", "tokens warmed", table.number(0)),
    table.Column("chunk_tokens", "tokens a step", table.number(0)),
    table.Column("step_s", "mean step s", table.number(3)),
)


def show_first(rows: Rows) -> None:
    """The first part."""
    tokens = rows[0]["prompt_tokens"]
    table.show(
        f"First requests: {tokens:.0f} tokens, of which all but one new line are listed",
        FIRST_COLUMNS,
        rows,
        "burst: several requests for each prompt at once, from an empty or newly warmed cache",
    )


def show_cost(rows: Rows, traffic: Traffic) -> None:
    """The second part."""
    low, high = traffic.words
    table.show(
        f"Open-loop traffic: {traffic.rate:.2f} requests/s (Poisson), prompts of {low} to {high} "
        f"words that share nothing, {traffic.new_tokens} new tokens",
        COST_COLUMNS,
        rows,
        "p99 over this many requests lies close to the worst of them"
        if rows[0]["requests"] < 200
        else None,
    )


def targets(first: Rows, cost: Rows) -> list[dict[str, Any]]:
    """What the feature promises, as far as the rows show it."""
    found = []

    def note(finding: str, value: float, wanted: str, met: bool) -> None:
        found.append({"finding": finding, "value": value, "wanted": wanted, "met": met})

    for row in first:
        if row["mode"] == "kv":
            value = row["least_hit"]
            note("kv: least share of a listed prompt hit", value, "at least 0.95", value >= 0.95)
            value = row["ttft_of_cold"]
            note("kv: TTFT p50 by cold", value, "at most 0.35", value <= 0.35)
    for row in cost:
        if row["warming"] == BUSY:
            value = row["p99_ratio"]
            note("real traffic: p99 TTFT by no warming", value, "at most 1.2", value <= 1.2)
    return found


def show_targets(found: Rows) -> None:
    """Nothing if the rows show none."""
    if found:
        table.show("Targets", table.FINDINGS, found)


def plot(path: Path, first: Rows, cost: Rows) -> None:
    """TTFT of both parts."""
    with plotting.figure(path, 1, 2) as (_, axes):
        left, right = axes[0]
        left.bar([r["mode"] for r in first], [r["ttft_p50_s"] for r in first])
        left.set(title="First requests", ylabel="TTFT p50 (s)")
        right.bar([r["warming"] for r in cost], [r["ttft_p99_s"] for r in cost])
        right.set(title="Real traffic by warming", ylabel="TTFT p99 (s)")
