# SPDX-License-Identifier: Apache-2.0
"""Rows to tables, findings and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common import plot as plotting
from common import table

Rows = list[dict[str, Any]]

TABLES = (
    table.Column("arm", "table", text=True),
    table.Column("register_per_s", "registered/s", table.number(0)),
    table.Column("remove_per_s", "removed/s", table.number(0)),
    table.Column("look_up_16_per_s", "look-ups/s (16)", table.number(0)),
    table.Column("look_up_16_p99_us", "p99 us", table.number(1)),
    table.Column("look_up_512_per_s", "look-ups/s (512)", table.number(0)),
    table.Column("look_up_512_p99_us", "p99 us", table.number(1)),
    table.Column("bytes_a_block", "bytes/block", table.number(1)),
)
HASHING = (
    table.Column("page_size", "page size", table.number(0)),
    table.Column("tokens", "tokens", table.number(0)),
    table.Column("us_a_prompt", "us a prompt", table.number(0)),
    table.Column("tokens_per_s", "tokens/s", table.number(0)),
)
TRANSPORT = (
    table.Column("arm", "reader", text=True),
    table.Column("blocks", "blocks", table.number(0)),
    table.Column("flush", "a flush", table.number(0)),
    table.Column("blocks_per_s", "blocks/s", table.number(0)),
    table.Column("offer_us_a_flush", "offer us", table.number(2)),
    table.Column("lag_p50_ms", "lag p50 ms", table.number(2)),
    table.Column("lag_p99_ms", "p99 ms", table.number(2)),
    table.Column("gap_s", "gap healed s", table.number(2)),
    table.Column("late_join_s", "late join s", table.number(2)),
    table.Column("restart_s", "restart healed s", table.number(2)),
)
COST = (
    table.Column("core", "core", text=True),
    table.Column("mode", "events", text=True),
    table.Column("thread_us_a_request", "scheduler us", table.number(0)),
    table.Column("process_us_a_request", "all threads us", table.number(0)),
    table.Column("wall_us_a_request", "wall us", table.number(0)),
    table.Column("added_thread_us", "added us", table.number(0)),
    table.Column("added_wall_us", "added wall us", table.number(0)),
)
FINDINGS = (
    table.Column("finding", "finding", text=True),
    table.Column("value", "measured", table.number(2)),
    table.Column("wanted", "target", text=True),
    table.Column("met", "met", lambda met: "yes" if met else "NO", text=True),
)


def add_derived(cost: Rows) -> None:
    """What each mode adds to the tree without events."""
    base = {row["core"]: row for row in cost if row["mode"] == "off"}
    for row in cost:
        off = base.get(row["core"])
        if off is not None and row is not off:
            for kind in ("thread", "wall"):
                key = f"{kind}_us_a_request"
                row[f"added_{kind}_us"] = row[key] - off[key]


def findings(tables: Rows, transport: Rows) -> Rows:
    """The issue's targets as far as the rows show them."""
    arms = {row["arm"]: row for row in tables}
    found: Rows = []

    def note(finding: str, value: float, wanted: str, met: bool) -> None:
        found.append({"finding": finding, "value": value, "wanted": wanted, "met": met})

    ours, dynamo = arms.get("registry"), arms.get("dynamo")
    if ours and dynamo:
        ratio = ours["look_up_512_per_s"] / dynamo["look_up_512_per_s"]
        note("look-ups at 512 blocks, by Dynamo's binding", ratio, ">= 5", ratio >= 5)
        ratio = ours["register_per_s"] / dynamo["register_per_s"]
        note("registering, by Dynamo's binding", ratio, ">= 1", ratio >= 1)
    if ours:
        size = ours["bytes_a_block"]
        note("bytes a block", size, "<= 64", size <= 64)
    others = {row["flush"]: row["blocks_per_s"] for row in transport if "dynamo" in row["arm"]}
    for row in transport:
        if row["arm"] != "registry":
            continue
        if row["flush"] in others:
            ratio = row["blocks_per_s"] / others[row["flush"]]
            what = f"blocks/s end to end, {row['flush']} a flush, by Dynamo's indexer"
            note(what, ratio, ">= 1", ratio >= 1)
        rate = row["blocks_per_s"]
        note(f"blocks/s end to end, {row['flush']} a flush", rate, ">= 158,000", rate >= 158_000)
        for key, what in (("gap_s", "a gap"), ("restart_s", "a restart")):
            note(f"s until equal after {what}", row[key], "<= 2", row[key] <= 2)
    return found


def show(tables: Rows, hashes: Rows, transport: Rows, cost: Rows, targets: Rows) -> None:
    """All tables that have rows."""
    for title, columns, rows, note in (
        ("Blocks in one process", TABLES, tables, "prompts of 512 blocks; hashing apart"),
        ("Hashing a prompt before its look-up", HASHING, hashes, None),
        (
            "A publisher process and a reader",
            TRANSPORT,
            transport,
            "lag = hand-over by the scheduler to the reader's table; restart = from the new "
            "process's bind",
        ),
        (
            "Cost for the scheduler, a request of 2,048 tokens, half of it new",
            COST,
            cost,
            "tree operations only, no model; page size 16",
        ),
        ("Targets", FINDINGS, targets, None),
    ):
        if rows:
            table.show(title, columns, rows, note)


def plot(path: Path, tables: Rows, cost: Rows) -> None:
    """Look-up rates, and what the scheduler pays."""
    with plotting.figure(path, columns=2) as (_, axes):
        left, right = axes[0]
        names = [row["arm"] for row in tables]
        left.barh(names, [row["look_up_512_per_s"] for row in tables], color=plotting.COLOURS[0])
        left.set_xlabel("look-ups/s at 512 blocks")
        left.set_xscale("log")
        labels = [f"{row['core']}, {row['mode']}" for row in cost]
        right.barh(labels, [row["thread_us_a_request"] for row in cost], color=plotting.COLOURS[1])
        right.set_xlabel("scheduler us a request of 2,048 tokens")
