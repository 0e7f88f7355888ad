# SPDX-License-Identifier: Apache-2.0
"""``--check``: the project's targets, from the rows of one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from common import cli, table

from .replay import BATCH
from .report import ALL_SETS

WIDTH = 12
COLUMNS = (
    table.Column("target", "target", text=True),
    table.Column("measured", "measured", text=True),
    table.Column("met", "met", text=True),
)
Rows = dict[str, dict[str, dict[str, Any]]]  # proposer -> set -> row


def check(rows: Sequence[dict[str, Any]]) -> int:
    """Shows every target and whether it is met; exit code 1 if one is not.

    Raises:
        BenchError: the run lacks what they are about.
    """
    runs: Rows = {}
    for row in rows:
        if row["width"] == WIDTH:
            runs.setdefault(row["proposer"], {})[row["set"]] = row
    missing = [name for name in ("full", "fast", "arctic") if name not in runs]
    if missing:
        raise cli.BenchError(f"--check needs {', '.join(missing)} at width {WIDTH} in the run")
    if runs["full"][ALL_SETS]["batch_step_ms"] is None:
        raise cli.BenchError(f"--check needs {BATCH} requests in the run, for the cost of a step")
    lines = [
        {"target": target, "measured": measured, "met": "yes" if met else "NO"}
        for target, measured, met in _targets(runs)
    ]
    table.show("Targets", COLUMNS, lines, note=f"width {WIDTH}, this run")
    return cli.EXIT_OK if all(line["met"] == "yes" for line in lines) else cli.EXIT_FAILED


def _targets(runs: Rows) -> Iterator[tuple[str, str, bool]]:
    total = {name: sets[ALL_SETS] for name, sets in runs.items()}
    full, fast, arctic = total["full"], total["fast"], total["arctic"]
    for row, least in ((full, 2.60), (fast, 2.45)):
        yield (
            f"{row['proposer']}: MAL at least {least:.2f}",
            f"{row['mal']:.2f}",
            row["mal"] >= least,
        )
    yield _above_all(runs)
    yield _sparing(runs)
    for row, faster, step in ((fast, 2.0, 1.0), (full, 1.0, 2.0)):
        name = row["proposer"]
        speed = row["prompt_tokens_per_s"] / arctic["prompt_tokens_per_s"]
        yield (
            f"{name}: prompt tokens/s at least {faster:g}x arctic's",
            f"{speed:.2f}x",
            speed >= faster,
        )
        cost = row["batch_step_ms"] / arctic["batch_step_ms"]
        yield f"{name}: step of 64 at most {step:g}x arctic's", f"{cost:.2f}x", cost <= step
    cost = fast["propose_us"] / arctic["propose_us"]
    yield "fast: proposal at most 1x arctic's", f"{cost:.2f}x", cost <= 1
    for row, most in ((fast, 100), (full, 400)):
        size = row["bytes_per_token"]
        yield f"{row['proposer']}: at most {most} bytes a token", f"{size:.0f}", size <= most


def _ours(name: str) -> bool:
    return name.split("@")[0] in ("full", "fast")


def _above_all(runs: Rows) -> tuple[str, str, bool]:
    """`full` against the best of the others, set by set."""
    worst, where = float("inf"), ""
    for dataset, row in runs["full"].items():
        for name, sets in runs.items():
            ahead = row["mal"] / sets[dataset]["mal"]
            if not _ours(name) and ahead < worst:
                worst, where = (
                    ahead,
                    f"{dataset}: {row['mal']:.2f}, {name} {sets[dataset]['mal']:.2f}",
                )
    return "full: MAL above every other proposer on every set", f"closest {where}", worst > 1


def _sparing(runs: Rows) -> tuple[str, str, bool]:
    """A threshold at which drafts are as good as Arctic's and more is accepted, on every set."""
    tried, good = [], ""
    for name, sets in runs.items():
        if "@" not in name or not _ours(name):
            continue
        pairs = [(row, runs["arctic"][dataset]) for dataset, row in sets.items()]
        tried.append(name)
        if all(a["mal"] > b["mal"] and a["accept_rate"] >= b["accept_rate"] for a, b in pairs):
            good = good or name
    return (
        "a threshold: arctic's accepted/drafted or better, MAL above its, on every set",
        good or f"none of {', '.join(tried) or 'no threshold'}",
        bool(good),
    )
