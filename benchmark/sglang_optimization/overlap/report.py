# SPDX-License-Identifier: Apache-2.0
"""Tables and figures of the overlap benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import plot, table

Rows = Sequence[dict[str, Any]]

MODEL_SUMMARY = [
    table.Column("policy", "policy", text=True),
    table.Column("of_oracle", "mean of oracle", table.percent),
    table.Column("worst", "worst cell, of the better fixed", table.percent),
    table.Column("below", "cells below 97 %", table.number(0)),
    table.Column("cells", "cells", table.number(0)),
]
MODEL_CELLS = [
    table.Column("traffic", "traffic", text=True),
    table.Column("rows", "batch", table.number(0)),
    table.Column("host_factor", "host cost", table.ratio),
    table.Column("forward_ms", "forward (ms)", table.number(1)),
    table.Column("always", "always (tok/s)", table.number(0)),
    table.Column("never", "never", table.number(0)),
    table.Column("dynamic", "dynamic", table.number(0)),
    table.Column("oracle", "oracle", table.number(0)),
    table.Column("of_better", "of better fixed", table.percent),
    table.Column("overlapped", "overlapped", table.percent),
    table.Column("wasted_always", "rows wasted: always", table.percent),
    table.Column("wasted_dynamic", "dynamic", table.percent),
]
ENGINE = [
    table.Column("workload", "workload", text=True),
    table.Column("figure", "figure", text=True),
    table.Column("of_always", "dynamic / always", table.number(3)),
    table.Column("of_never", "dynamic / never", table.number(3)),
    table.Column("better", "better fixed", text=True),
    table.Column("low", "95 % from", table.number(3)),
    table.Column("high", "to", table.number(3)),
    table.Column("starts", "starts", table.number(0)),
    table.Column("pairs", "pairs", table.number(0)),
]
LOOPS = [
    table.Column("rows", "rows", table.number(0)),
    table.Column("turns", "turns", table.number(0)),
    table.Column("never_ms", "never (ms/step)", table.number(2)),
    table.Column("always_ms", "always", table.number(2)),
    table.Column("dynamic_ms", "dynamic", table.number(2)),
    table.Column("of_never", "dynamic / never", table.number(3)),
    table.Column("of_never_low", "95 % from", table.number(3)),
    table.Column("of_never_high", "to", table.number(3)),
    table.Column("of_always", "dynamic / always", table.number(3)),
    table.Column("of_always_low", "95 % from", table.number(3)),
    table.Column("of_always_high", "to", table.number(3)),
]
DECISIONS = [
    table.Column("outcome", "outcome", text=True),
    table.Column("reason", "reason", text=True),
    table.Column("decisions", "decisions", table.number(0)),
]
COST = [
    table.Column("part", "part", text=True),
    table.Column("us", "CPU time, best (us/step)", table.number(2)),
    table.Column("median_us", "median (us/step)", table.number(2)),
]


def model_summary(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the policies."""
    return [
        {
            "policy": "dynamic",
            "of_oracle": summary["dynamic_of_oracle"],
            "worst": summary["worst_of_better"],
            "below": summary["cells_below_97"],
            "cells": summary["cells"],
        },
        {
            "policy": "always",
            "of_oracle": summary["always_of_oracle"],
            "worst": summary["always_worst"],
        },
        {
            "policy": "never",
            "of_oracle": summary["never_of_oracle"],
            "worst": summary["never_worst"],
        },
    ]


def heat_map(path: Path, rows: Rows) -> None:
    """Dynamic over the better fixed policy (upper) and share of overlapped steps (lower).

    One column of panels a kind of traffic; batch and host cost downwards, forward time to
    the right.
    """
    kinds = list(dict.fromkeys(row["traffic"] for row in rows))
    forwards = sorted({row["forward_ms"] for row in rows})
    down = sorted({(row["rows"], row["host_factor"]) for row in rows})
    panels = (
        ("of_better", "dynamic / better fixed", 0.9, 1.1, "RdBu"),
        ("overlapped", "steps overlapped", 0.0, 1.0, "viridis"),
    )
    size = (1.2 + 0.55 * len(forwards), 1.2 + 0.26 * len(down))
    with plot.figure(path, len(panels), len(kinds), panel=size) as (drawing, axes):
        for line, (key, title, low, high, colours) in enumerate(panels):
            for column, kind in enumerate(kinds):
                at = {
                    (row["rows"], row["host_factor"], row["forward_ms"]): row[key]
                    for row in rows
                    if row["traffic"] == kind
                }
                values = [[at[r, h, f] for f in forwards] for r, h in down]
                axis = axes[line][column]
                image = axis.imshow(values, vmin=low, vmax=high, cmap=colours, aspect="auto")
                for y, cells in enumerate(values):
                    for x, value in enumerate(cells):
                        axis.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=6)
                axis.set_xticks(range(len(forwards)), [f"{f:g}" for f in forwards], fontsize=7)
                axis.set_yticks(range(len(down)), [f"{r} x{h:g}" for r, h in down], fontsize=7)
                axis.set_title(f"{kind}: {title}", fontsize=8)
                axis.set_xlabel("forward pass (ms)", fontsize=8)
                axis.set_ylabel("batch, host cost", fontsize=8)
            drawing.colorbar(image, ax=list(axes[line]), shrink=0.8)
