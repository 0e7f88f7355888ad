# SPDX-License-Identifier: Apache-2.0
"""Rows, derived columns, tables and plots of the eviction benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Sequence

from common import plot, stats
from common.table import Column, byte_size, number, percent, ratio

from .policies import BASELINE, OPTIMUM, PYTHON_BASELINE, Policy

if TYPE_CHECKING:
    from .driver import Outcome
    from .optimum import Bound
    from .trace import Trace

Row = dict[str, Any]
LEAST_CAPACITIES_FOR_EQUIVALENT = 5
# Below this difference of hit ratios a share of the gap is noise (a few blocks).
LEAST_GAP = 0.005

COLUMNS = (
    Column("capacity", "blocks", number(0)),
    Column("policy", "policy", text=True),
    Column("core", "core", text=True),
    Column("hit_ratio", "block hit", number(4)),
    Column("token_hit_ratio", "token hit", number(4)),
    Column("gap_closed", "gap closed", percent),
    Column("lru_capacity_text", "LRU needs", text=True),
    Column("request_us", "CPU us/request", number(1)),
    Column("against_python", "/ lru@python", ratio),
    Column("eviction_us", "CPU us/evict", number(1)),
    Column("state_bytes", "state", byte_size),
    Column("rejected", "rejected", number(0)),
)
SUMMARY_COLUMNS = (
    Column("policy", "policy", text=True),
    Column("cells", "cells", number(0)),
    Column("mean_gap_closed", "mean gap closed", percent),
    Column("worst_against_lru", "worst cell / LRU", number(4)),
    Column("mean_hit_ratio", "mean block hit", number(4)),
    Column("mean_request_us", "CPU us/request", number(1)),
)
SCALE_COLUMNS = (
    Column("policy", "policy", text=True),
    Column("core", "core", text=True),
    Column("leaves", "leaves", number(0)),
    Column("evict_us", "CPU us/evict(16)", number(1)),
    Column("evict_us_p90", "p90", number(1)),
    Column("against_lru", "/ Rust LRU", ratio),
    Column("against_fewest", "/ own fewest", ratio),
    Column("calls", "calls", number(0)),
    Column("state_bytes", "state", byte_size),
)


def outcome_row(trace: Trace, policy: Policy, capacity: int, outcome: Outcome) -> Row:
    """One replay as a row. Derived columns come with ``complete()``."""
    return {
        "trace": trace.name,
        "capacity": capacity,
        "policy": policy.name,
        "core": policy.core,
        "requests": outcome.requests,
        "rejected": outcome.rejected or None,
        "hit_blocks": outcome.hit_blocks,
        "total_blocks": outcome.total_blocks,
        "hit_ratio": outcome.hit_ratio,
        "token_hit_ratio": outcome.token_hit_ratio,
        "request_us": outcome.mean_request_us,
        "request_us_p99": stats.percentile(outcome.request_us, 99),
        "eviction_us": outcome.mean_eviction_us if outcome.evictions else None,
        "evictions": outcome.evictions,
        "evicted_blocks": outcome.evicted_blocks,
        "state_bytes": outcome.state_bytes,
        "details": outcome.details,
    }


def bound_row(trace: Trace, capacity: int, bound: Bound) -> Row:
    """The optimum as a row."""
    return {
        "trace": trace.name,
        "capacity": capacity,
        "policy": OPTIMUM,
        "core": None,
        "requests": len(trace.requests),
        "rejected": bound.rejected or None,
        "hit_blocks": bound.hit_blocks,
        "total_blocks": bound.total_blocks,
        "hit_ratio": bound.hit_ratio,
        "token_hit_ratio": bound.token_hit_ratio,
    }


def complete(rows: Sequence[Row]) -> None:
    """Fill in what a row says relative to LRU and the optimum of its own cell."""
    cell = {(r["trace"], r["capacity"], r["policy"]): r["hit_ratio"] for r in rows}
    cost = {
        (r["trace"], r["capacity"]): r["request_us"] for r in rows if r["policy"] == PYTHON_BASELINE
    }
    for row in rows:
        python = cost.get((row["trace"], row["capacity"]))
        if python and row.get("request_us"):
            row["against_python"] = row["request_us"] / python
        lru = cell.get((row["trace"], row["capacity"], BASELINE))
        best = cell.get((row["trace"], row["capacity"], OPTIMUM))
        row["gap_closed"] = gap_closed(row["hit_ratio"], lru, best)
        row["against_lru"] = row["hit_ratio"] / lru if lru else None
    for name in {row["trace"] for row in rows}:
        _complete_equivalents([row for row in rows if row["trace"] == name])


def gap_closed(hit: float, lru: float | None, best: float | None) -> float | None:
    """Share of the way from LRU to the optimum; None where the way is too short."""
    if lru is None or best is None or best - lru < LEAST_GAP:
        return None
    return (hit - lru) / (best - lru)


def equivalent_capacity(
    hit: float, capacities: Sequence[float], lru_hits: Sequence[float]
) -> float | None:
    """The capacity at which LRU reaches ``hit``, linear between measured points.

    Args:
        capacities: ascending; ``lru_hits`` are LRU's hit ratios at them.

    Returns:
        None where the answer lies outside the measured capacities.
    """
    if not lru_hits or not lru_hits[0] <= hit <= max(lru_hits):
        return None
    for index in range(1, len(capacities)):
        low, high = lru_hits[index - 1], lru_hits[index]
        if low <= hit <= high:
            share = (hit - low) / (high - low) if high > low else 0.0
            return capacities[index - 1] + share * (capacities[index] - capacities[index - 1])
    return None


def summary(rows: Sequence[Row]) -> list[Row]:
    """One row a policy: means over the cells, and the worst cell against LRU."""
    result = []
    for name in dict.fromkeys(row["policy"] for row in rows):
        own = [row for row in rows if row["policy"] == name]
        gaps = [r["gap_closed"] for r in own if r["gap_closed"] is not None]
        against = [r["against_lru"] for r in own if r["against_lru"] is not None]
        times = [r["request_us"] for r in own if r.get("request_us") is not None]
        result.append(
            {
                "policy": name,
                "cells": len(own),
                "mean_gap_closed": stats.mean(gaps) if gaps else None,
                "worst_against_lru": min(against) if against else None,
                "mean_hit_ratio": stats.mean([r["hit_ratio"] for r in own]),
                "mean_request_us": stats.mean(times) if times else None,
            }
        )
    return result


def complete_scale(rows: Sequence[Row]) -> None:
    """Fill in the ratios of the scale table."""
    cost = {(row["policy"], row["leaves"]): row["evict_us"] for row in rows}
    for row in rows:
        lru = cost.get((BASELINE, row["leaves"]))
        fewest = min(leaves for name, leaves in cost if name == row["policy"])
        row["against_lru"] = row["evict_us"] / lru if lru else None
        row["against_fewest"] = row["evict_us"] / cost[row["policy"], fewest]


def replay_tables(rows: Sequence[Row]) -> list[tuple[str, Sequence[Column], Sequence[Row]]]:
    """Title, columns and rows of one table a trace, and of the summary."""
    tables: list[tuple[str, Sequence[Column], Sequence[Row]]] = []
    for name in dict.fromkeys(row["trace"] for row in rows):
        own = [row for row in rows if row["trace"] == name]
        title = f"{name}: {own[0]['requests']:,} requests, {own[0]['total_blocks']:,} blocks"
        tables.append((title, COLUMNS, own))
    tables.append(("all cells", SUMMARY_COLUMNS, summary(rows)))
    return tables


def scale_tables(rows: Sequence[Row]) -> list[tuple[str, Sequence[Column], Sequence[Row]]]:
    """Title, columns and rows of the scale table."""
    return [("evict(16 tokens), full pool", SCALE_COLUMNS, rows)]


def plot_hits(path: Path, rows: Sequence[Row]) -> None:
    """Block hit ratio against capacity, one panel a trace."""
    traces = list(dict.fromkeys(row["trace"] for row in rows))
    names = list(dict.fromkeys(row["policy"] for row in rows))
    columns = min(3, len(traces))
    with plot.figure(path, -(-len(traces) // columns), columns) as (drawing, axes):
        panels = axes.flatten()
        for panel, trace in zip(panels, traces):
            for index, name in enumerate(names):
                points = sorted(
                    (row["capacity"], row["hit_ratio"])
                    for row in rows
                    if row["trace"] == trace and row["policy"] == name
                )
                panel.plot(*zip(*points), label=name, **plot.style(index))
            panel.set_title(trace)
            panel.set_xscale("log")
            panel.set_xlabel("pool (blocks)")
            panel.set_ylabel("block hit ratio")
            panel.grid(alpha=0.3)
        for panel in panels[len(traces) :]:
            panel.set_axis_off()
        handles, labels = panels[0].get_legend_handles_labels()
        drawing.legend(handles, labels, loc="outside right center", fontsize=8)


def plot_scale(path: Path, rows: Sequence[Row]) -> None:
    """Time of ``evict(16)`` against the number of leaves, both logarithmic."""
    with plot.figure(path, panel=(7.0, 4.5)) as (drawing, axes):
        panel = axes[0][0]
        for index, name in enumerate(dict.fromkeys(row["policy"] for row in rows)):
            points = sorted(
                (row["leaves"], row["evict_us"]) for row in rows if row["policy"] == name
            )
            panel.plot(*zip(*points), label=name, **plot.style(index))
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("evictable leaves of 4 tokens")
        panel.set_ylabel("us per evict(16 tokens)")
        panel.grid(alpha=0.3, which="both")
        drawing.legend(loc="outside right center", fontsize=8)


def _complete_equivalents(rows: Sequence[Row]) -> None:
    lru = sorted((r["capacity"], r["hit_ratio"]) for r in rows if r["policy"] == BASELINE)
    if len(lru) < LEAST_CAPACITIES_FOR_EQUIVALENT:
        return
    capacities = [capacity for capacity, _ in lru]
    hits = [hit for _, hit in lru]
    for row in rows:
        needed = equivalent_capacity(row["hit_ratio"], capacities, hits)
        row["lru_capacity"] = needed
        if needed is not None:
            row["lru_capacity_text"] = f"{needed:,.0f} ({needed / row['capacity']:.2f}x)"
        elif row["hit_ratio"] > max(hits):
            row["lru_capacity_text"] = f"> {capacities[-1]:,}"
        else:
            row["lru_capacity_text"] = f"< {capacities[0]:,}"
