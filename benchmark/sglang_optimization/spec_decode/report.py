# SPDX-License-Identifier: Apache-2.0
"""Tables and plot of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import plot as plotting
from common import table

ALL_SETS = "all (geometric mean)"


def _millions(value: float) -> str:
    return f"{value / 1e6:.2f} M" if value >= 1e5 else f"{value / 1e3:.1f} k"


COLUMNS = (
    table.Column("set", "set", text=True),
    table.Column("proposer", "proposer", text=True),
    table.Column("width", "width"),
    table.Column("mal", "MAL", table.number(2)),
    table.Column("accept_rate", "accepted / drafted", table.number(2)),
    table.Column("drafted_per_step", "drafted a step", table.number(1)),
    table.Column("prompt_tokens_per_s", "prompt tokens/s", _millions),
    table.Column("update_us", "update us", table.number(1)),
    table.Column("propose_us", "propose us", table.number(1)),
    table.Column("batch_step_ms", "step of 64, ms", table.number(2)),
    table.Column("bytes_per_token", "bytes a token", table.number(0)),
)


def show(rows: Sequence[dict[str, Any]], widths: Sequence[int]) -> None:
    """One table of MAL by set and one of cost, a line a proposer and width."""
    sets = list(dict.fromkeys(row["set"] for row in rows))
    columns = [COLUMNS[1], COLUMNS[2]]
    columns += [table.Column(name, name, str) for name in sets]
    lines: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault((row["proposer"], row["width"]), {})
        line.update(proposer=row["proposer"], width=row["width"])
        rate = row["accept_rate"]
        line[row["set"]] = f"{row['mal']:.2f}" + ("" if rate is None else f" ({rate:.2f})")
    table.show(
        "Mean accepted length (accepted/drafted)",
        columns,
        list(lines.values()),
        note="output tokens / (verifications + prefill); greedy replay",
    )
    total = [row for row in rows if row["set"] == ALL_SETS]
    table.show("Cost, all sets", COLUMNS[1:], total, note="widths count the root")


def plot(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """MAL against width, and MAL against tokens drafted a step, one line a proposer."""
    total = [row for row in rows if row["set"] == ALL_SETS]
    names = list(dict.fromkeys(row["proposer"] for row in total))
    with plotting.figure(path, 1, 2) as (_, axes):
        left, right = axes[0]
        for index, name in enumerate(names):
            mine = [row for row in total if row["proposer"] == name]
            style = plotting.style(index)
            left.plot([r["width"] for r in mine], [r["mal"] for r in mine], label=name, **style)
            right.plot([r["drafted_per_step"] for r in mine], [r["mal"] for r in mine], **style)
        left.set(xlabel="tree width, root included", ylabel="mean accepted length")
        right.set(xlabel="tokens drafted a step", ylabel="mean accepted length")
        left.legend(fontsize=7)
