# SPDX-License-Identifier: Apache-2.0
"""Rows to tables, findings and plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common import plot as plotting
from common import table

from .arms import BASELINE, UNLIMITED

INCREMENTAL, AGING = "lpm-incremental", "lpm-aging"
COLUMNS = (
    table.Column("policy", "policy", text=True),
    table.Column("queue", "waiting", table.number(0)),
    table.Column("hit_ratio", "hit ratio", table.percent),
    table.Column("call_us_p50", "call p50 us", table.number(0)),
    table.Column("call_us_p99", "p99 us", table.number(0)),
    table.Column("call_growth", "growth", table.ratio),
    table.Column("wait_mean", "wait mean s", table.number(2)),
    table.Column("wait_p99", "p99 s", table.number(2)),
    table.Column("wait_worst", "worst s", table.number(2)),
    table.Column("cold_wait_worst", "cold worst s", table.number(2)),
    table.Column("jain", "Jain", table.number(3)),
)
FINDINGS = (
    table.FINDINGS[0],
    table.Column("workload", "workload", text=True),
    table.Column("queue", "waiting", table.number(0)),
    *table.FINDINGS[1:],
)
Rows = list[dict[str, Any]]


def add_derived(rows: Rows) -> None:
    """Growth of a call with the queue: by the shortest queue of the same policy."""
    base: dict[tuple[str, str], float] = {}
    for row in sorted(rows, key=lambda r: r["queue"] or 0):
        key = row["workload"], row["policy"]
        base.setdefault(key, row["call_us_p50"])
        if row["queue"] is not None:
            row["call_growth"] = row["call_us_p50"] / base[key]


def show(rows: Rows) -> None:
    """One table a workload."""
    for name in dict.fromkeys(row["workload"] for row in rows):
        table.show(
            f"{name}: real SchedulePolicy and tree, no model",
            COLUMNS,
            [row for row in rows if row["workload"] == name],
            "call = processor time of calc_priority; growth = by the shortest queue; waits "
            "in virtual seconds, requests still waiting at the end included",
        )


def findings(rows: Rows) -> Rows:
    """The known faults and this fork's targets, as far as the rows show them."""
    found: Rows = []
    places: dict[tuple[str, Any], dict[str, dict[str, Any]]] = {}
    for row in rows:
        places.setdefault((row["workload"], row["queue"]), {})[row["policy"]] = row
    for (workload, queue), arms in places.items():

        def note(
            finding: str, value: float, wanted: str | None = None, met: bool | None = None
        ) -> None:
            found.append(
                {
                    "finding": finding,
                    "workload": workload,
                    "queue": queue,
                    "value": value,
                    "wanted": wanted,
                    "met": met,
                }
            )

        _facts(queue, arms, note)
        _targets(workload, queue, arms, note)
    return found


def _facts(queue: Any, arms: dict[str, dict[str, Any]], note: Any) -> None:
    fcfs, lpm = arms.get(BASELINE), arms.get("lpm")
    if not (fcfs and lpm and queue):
        return
    if queue > 128:
        if fcfs["hit_ratio"]:
            note(
                "upstream's lpm by fcfs, hits (1 = it is fcfs)",
                lpm["hit_ratio"] / fcfs["hit_ratio"],
            )
    elif fcfs["cold_wait_worst"] and lpm["cold_wait_worst"]:
        note(
            "upstream's lpm by fcfs, worst wait of cold requests",
            lpm["cold_wait_worst"] / fcfs["cold_wait_worst"],
        )


def _targets(workload: str, queue: Any, arms: dict[str, dict[str, Any]], note: Any) -> None:
    fcfs, whole = arms.get(BASELINE), arms.get(UNLIMITED)
    ours, aging = arms.get(INCREMENTAL), arms.get(AGING)
    if ours and queue == 4096:
        value = ours["call_us_p50"]
        note(f"{INCREMENTAL}: call p50, us", value, "at most 5,000", value <= 5000)
    if ours and whole and whole["hit_ratio"]:
        value = ours["hit_ratio"] / whole["hit_ratio"]
        note(f"{INCREMENTAL} by {UNLIMITED}, hits", value, "at least 0.98", value >= 0.98)
    if ours and fcfs and workload == "shared" and queue and queue > 1000:
        value = ours["hit_ratio"] / fcfs["hit_ratio"]
        note(f"{INCREMENTAL} by fcfs, hits", value, "at least 1.3", value >= 1.3)
    if aging and fcfs and fcfs["wait_worst"]:
        value = aging["wait_worst"] / fcfs["wait_worst"]
        note(f"{AGING} by fcfs, worst wait", value, "at most 2", value <= 2)
    if aging and ours and ours["hit_ratio"]:
        value = aging["hit_ratio"] / ours["hit_ratio"]
        note(f"{AGING} by {INCREMENTAL}, hits", value, "at least 0.95", value >= 0.95)


def show_findings(found: Rows) -> None:
    """Facts and targets in one table; nothing if the rows show none."""
    if found:
        table.show("Facts and targets", FINDINGS, found)


def plot(path: Path, rows: Rows) -> None:
    """Hits, call cost and worst wait against the queue, or by policy for a trace."""
    held = any(row["queue"] is not None for row in rows)
    panels = (
        ("hit_ratio", "hit ratio", False),
        ("call_us_p50", "policy call p50 (us)", True),
        ("wait_worst", "worst wait (s)", held),
    )
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    with plotting.figure(path, rows=len(workloads), columns=3) as (_, axes):
        for line, workload in enumerate(workloads):
            mine = [row for row in rows if row["workload"] == workload]
            policies = list(dict.fromkeys(row["policy"] for row in mine))
            for column, (key, label, log) in enumerate(panels):
                axis = axes[line][column]
                if held:
                    _lines(axis, mine, policies, key)
                else:
                    axis.barh(policies, [row[key] for row in mine], color=plotting.COLOURS[0])
                axis.set_title(f"{workload}: {label}", fontsize=9)
                if log and held:
                    axis.set_yscale("log")
                elif log:
                    axis.set_xscale("log")
            if held:
                axes[line][0].legend(fontsize=6)


def _lines(axis: Any, rows: Rows, policies: list[str], key: str) -> None:
    for index, policy in enumerate(policies):
        points = [
            (row["queue"], row[key])
            for row in rows
            if row["policy"] == policy and row[key] is not None
        ]
        axis.plot(*zip(*points), label=policy, **plotting.style(index))
    axis.set_xscale("log", base=2)
    axis.set_xlabel("waiting requests")
