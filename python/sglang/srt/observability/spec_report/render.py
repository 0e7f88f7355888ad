# SPDX-License-Identifier: Apache-2.0
"""Prints a report: tables with rich where it is installed, aligned text otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence, TextIO

from sglang.srt.observability.spec_report.analysis import STEP_STAGES, Analysis
from sglang.srt.observability.spec_report.verdicts import Verdict

_STYLES = {"bad": "bold red", "warning": "yellow", "ok": "green"}


@dataclass(frozen=True)
class Table:
    """Rows of texts; the first column is a name, the others are numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(found: Analysis) -> list[Table]:
    """The report's tables; empty ones are left out."""
    decode = sum(s.seconds for s in found.stages if s.name in STEP_STAGES)
    made = [
        Table(
            "Speculation",
            ("", "value"),
            [
                ("verification steps", f"{found.steps:,.0f}"),
                ("requests a step", _ratio(found.request_steps, found.steps)),
                ("tokens a request step", f"{found.tokens_per_step:.2f}"),
                ("drafts a request step", f"{found.drafted_per_step:.2f}"),
                ("width verified", f"{found.width:.1f}"),
                ("accepted / drafted", f"{found.accept_rate:.1%}"),
            ],
        ),
        Table(
            "Time",
            ("stage", "clock", "count", "ms each", "share of decode"),
            [
                (
                    s.name,
                    s.clock,
                    f"{s.count:,.0f}",
                    f"{s.mean_ms:.3f}",
                    f"{s.seconds / decode:.1%}"
                    if decode and s.name in STEP_STAGES
                    else "-",
                )
                for s in found.stages
            ],
        ),
        Table(
            "Acceptance by draft position",
            ("position", "offered", "accepted", "rate"),
            [
                (
                    str(p.position),
                    f"{p.offered:,.0f}",
                    f"{p.accepted:,.0f}",
                    f"{p.rate:.1%}",
                )
                for p in found.positions
            ],
        ),
        Table(
            "Drafts by source",
            ("source", "match length", "drafted", "accepted", "rate"),
            [
                (
                    s.source,
                    s.match_length,
                    f"{s.drafted:,.0f}",
                    f"{s.accepted:,.0f}",
                    f"{s.rate:.1%}",
                )
                for s in found.sources
            ],
        ),
        Table(
            "Waste",
            ("what", "count", "share"),
            [
                (
                    "drafts rejected",
                    f"{found.drafted - found.accepted:,.0f}",
                    _share(found.drafted - found.accepted, found.drafted),
                ),
                (
                    "drafts discarded",
                    f"{found.discarded:,.0f}",
                    _share(found.discarded, found.drafted + found.discarded),
                ),
                (
                    "KV slots overwritten",
                    f"{found.kv_overwritten:,.0f}",
                    _share(found.kv_overwritten, found.kv_written),
                ),
                (
                    "KV reserve unneeded, slots x steps",
                    f"{found.unneeded:,.0f}",
                    _share(found.unneeded, found.reserved),
                ),
            ],
        ),
    ]
    return [table for table in made if table.rows]


def print_report(found: Analysis, verdicts: Sequence[Verdict], file: TextIO) -> None:
    """Writes tables and verdicts to ``file``."""
    try:
        from rich.console import Console
    except ImportError:
        _print_plain(tables(found), verdicts, file)
        return
    from rich.table import Table as RichTable

    console = Console(file=file, highlight=False)
    for table in tables(found):
        shown = RichTable(title=table.title, title_justify="left")
        for i, column in enumerate(table.columns):
            shown.add_column(column, justify="left" if i == 0 else "right")
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)
    for verdict in verdicts:
        style = _STYLES[verdict.level]
        console.print(
            f"[{style}]{verdict.level}: {verdict.topic}.[/] {verdict.text}",
            soft_wrap=True,
        )


def as_json(found: Analysis, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The report as JSON-native values."""
    from dataclasses import asdict

    return {
        **asdict(found),
        "tokens_per_step": found.tokens_per_step,
        "drafted_per_step": found.drafted_per_step,
        "accept_rate": found.accept_rate,
        "verdicts": [asdict(v) for v in verdicts],
    }


def _print_plain(
    made: Sequence[Table], verdicts: Sequence[Verdict], file: TextIO
) -> None:
    for table in made:
        rows = [table.columns, *table.rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
        print(table.title, file=file)
        for row in rows:
            first = row[0].ljust(widths[0])
            rest = (text.rjust(width) for text, width in zip(row[1:], widths[1:]))
            print("  " + "  ".join((first, *rest)), file=file)
        print(file=file)
    for verdict in verdicts:
        print(f"{verdict.level}: {verdict.topic}. {verdict.text}", file=file)


def _ratio(part: float, whole: float) -> str:
    return f"{part / whole:.2f}" if whole else "-"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"
