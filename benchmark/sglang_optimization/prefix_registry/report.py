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
    table.Column("behind_s", "20,000 behind s", table.number(2)),
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
PUBLISHING = (
    table.Column("reader", "readers", text=True),
    table.Column("rounds", "rounds", table.number(0)),
    table.Column("silent_tokens_per_s", "tokens/s without", table.number(0)),
    table.Column("publishing_tokens_per_s", "with", table.number(0)),
    table.Column("rate_ratio", "ratio", table.number(3)),
    table.Column("rate_low", "95 % from", table.number(3)),
    table.Column("rate_high", "to", table.number(3)),
    table.Column("cpu_ratio", "CPU a token", table.number(3)),
    table.Column("cpu_low", "95 % from", table.number(3)),
    table.Column("cpu_high", "to", table.number(3)),
    table.Column("published", "updates", table.number(0)),
    table.Column("missed", "missed by it", table.number(0)),
)
SCHEDULER = (
    table.Column("core", "core", text=True),
    *PUBLISHING[:8],
    table.Column("added_us", "added us a prompt", table.number(0)),
    table.Column("added_low", "95 % from", table.number(0)),
    table.Column("added_high", "to", table.number(0)),
    *PUBLISHING[10:],
)
ORDERING = (
    table.Column("order", "order", text=True),
    table.Column("requests", "requests", table.number(0)),
    table.Column("ttft_all_mean_s", "TTFT mean s", table.number(2)),
    table.Column("ttft_all_p90_s", "p90 s", table.number(2)),
    table.Column("ttft_cached_mean_s", "cached mean s", table.number(2)),
    table.Column("ttft_cold_mean_s", "cold mean s", table.number(2)),
    table.Column("ttft_cold_max_s", "cold max s", table.number(2)),
    table.Column("held_token_s", "held token s", table.number(0)),
    table.Column("ttft_ratio", "TTFT ratio", table.number(2)),
    table.Column("ttft_low", "95 % from", table.number(2)),
    table.Column("ttft_high", "to", table.number(2)),
    table.Column("held_ratio", "held ratio", table.number(2)),
    table.Column("held_low", "95 % from", table.number(2)),
    table.Column("held_high", "to", table.number(2)),
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


def findings(tables: Rows, transport: Rows, publishing: Rows) -> Rows:
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
        for key, what in (
            ("gap_s", "a gap"),
            ("behind_s", "standing still for 20,000 updates"),
            ("restart_s", "a restart"),
        ):
            note(f"s until equal after {what}", row[key], "<= 2", row[key] <= 2)
    for row in publishing:
        what = f"prefill throughput when publishing, by without; readers: {row['reader']}"
        # Shown only where chance is ruled out: a noisy run meets no target.
        note(what, row["rate_ratio"], ">= 0.98 (95 %)", row["rate_low"] >= 0.98)
    return found


def show(
    tables: Rows,
    hashes: Rows,
    transport: Rows,
    cost: Rows,
    scheduler: Rows,
    publishing: Rows,
    ordering: Rows,
    targets: Rows,
) -> None:
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
        (
            "Publishing in turns of one prefill scheduler",
            SCHEDULER,
            scheduler,
            "real loop, model and publisher, no KV handed over; 95 % intervals of the mean ratio "
            "and of the median of what a prompt costs more",
        ),
        (
            "Publishing on a served pair, prefill tokens computed",
            PUBLISHING,
            publishing,
            "in turns with an instance that does not publish; 95 % intervals of the mean ratio",
        ),
        (
            "Order of decode's queue on a served pair",
            ORDERING,
            ordering,
            "half of the requests have a cached prefix; held = decode's slots that wait for KV, "
            "tokens x seconds a round; ratios to arrival",
        ),
        ("Targets", table.FINDINGS, targets, None),
    ):
        if rows:
            table.show(title, columns, rows, note)


def plot(path: Path, rows: dict[str, Rows]) -> None:
    """Look-up rates, what the scheduler pays, and what the order gives, as far as measured."""
    panels = [
        (panel, found)
        for panel, found in (
            (_plot_look_ups, rows["tables"]),
            (_plot_cost, rows["cost"]),
            (_plot_publishing, [*rows["scheduler"], *rows["publishing"]]),
            (_plot_order, rows["ordering"]),
        )
        if found
    ]
    with plotting.figure(path, columns=max(1, len(panels))) as (_, axes):
        for axis, (panel, found) in zip(axes[0], panels, strict=False):
            panel(axis, found)


def _plot_look_ups(axis: Any, tables: Rows) -> None:
    names = [row["arm"] for row in tables]
    axis.barh(names, [row["look_up_512_per_s"] for row in tables], color=plotting.COLOURS[0])
    axis.set_xlabel("look-ups/s at 512 blocks")
    axis.set_xscale("log")


def _plot_cost(axis: Any, cost: Rows) -> None:
    labels = [f"{row['core']}, {row['mode']}" for row in cost]
    axis.barh(labels, [row["thread_us_a_request"] for row in cost], color=plotting.COLOURS[1])
    axis.set_xlabel("scheduler us a request of 2,048 tokens")


def _plot_publishing(axis: Any, publishing: Rows) -> None:
    for place, (key, label) in enumerate((("rate", "throughput"), ("cpu", "CPU a token"))):
        middles = [row[f"{key}_ratio"] for row in publishing]
        lows = [m - row[f"{key}_low"] for m, row in zip(middles, publishing, strict=True)]
        highs = [row[f"{key}_high"] - m for m, row in zip(middles, publishing, strict=True)]
        rows = [number + 0.2 * place for number in range(len(publishing))]
        colour = plotting.COLOURS[place]
        axis.errorbar(
            middles, rows, xerr=[lows, highs], fmt="o", capsize=4, color=colour, label=label
        )
    labels = [f"{row.get('core', 'served')}; {row['reader']}" for row in publishing]
    axis.set_yticks(range(len(publishing)), labels)
    axis.axvline(1.0, color="#999999", linewidth=0.8)
    axis.set_xlabel("publishing by not publishing")
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)


def _plot_order(axis: Any, ordering: Rows) -> None:
    kinds = ("all", "cached", "cold")
    for place, row in enumerate(ordering):
        rows = [number + 0.35 * place for number in range(len(kinds))]
        values = [row[f"ttft_{kind}_mean_s"] for kind in kinds]
        axis.barh(rows, values, height=0.3, color=plotting.COLOURS[place], label=row["order"])
    axis.set_yticks([number + 0.17 for number in range(len(kinds))], kinds)
    axis.set_xlabel("mean TTFT, s")
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
