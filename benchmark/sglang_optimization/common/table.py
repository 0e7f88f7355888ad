# SPDX-License-Identifier: Apache-2.0
"""Result tables: the same columns and rows for the terminal and for Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

MISSING = "-"
Row = Mapping[str, Any]


def number(digits: int) -> Callable[[Any], str]:
    """Fixed-point with ``digits`` decimals and thousands separators."""
    return lambda value: f"{value:,.{digits}f}"


def percent(value: Any) -> str:
    """A ratio shown in per cent with one decimal."""
    return f"{100 * value:.1f} %"


def ratio(value: Any) -> str:
    """A factor, e.g. ``0.12x``."""
    return f"{value:.2f}x" if abs(value) < 10 else f"{value:,.0f}x"


def byte_size(value: Any) -> str:
    """Bytes in the largest binary unit that keeps at least one whole unit."""
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class Column:
    """One column: key into the row, header, and how a present value is written."""

    key: str
    header: str
    write: Callable[[Any], str] = str
    text: bool = False

    def cell(self, row: Row) -> str:
        """The written value; a dash where the row has none."""
        value = row.get(self.key)
        return MISSING if value is None else self.write(value)


# What was measured against what was asked; ``wanted`` and ``met`` are missing for plain facts.
FINDINGS = (
    Column("finding", "finding", text=True),
    Column("value", "measured", number(3)),
    Column("wanted", "target", text=True),
    Column("met", "met", lambda met: "yes" if met else "NO", text=True),
)


def show(
    title: str, columns: Sequence[Column], rows: Sequence[Row], note: str | None = None
) -> None:
    """Print one table to stdout. Columns without any value are left out."""
    shown = _used(columns, rows)
    table = Table(title=title, title_justify="left", caption=note, caption_justify="left")
    for column in shown:
        table.add_column(column.header, justify="left" if column.text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(column.cell(row) for column in shown))
    console = Console(highlight=False)
    if not console.is_terminal:
        # A pipe has no width; never cut a number to fit 80 columns.
        console = Console(highlight=False, width=200)
    console.print(table)


def markdown(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """The same table in Markdown. Columns without any value are left out."""
    shown = _used(columns, rows)
    lines = [
        "| " + " | ".join(column.header for column in shown) + " |",
        "|" + "|".join("---" if column.text else "---:" for column in shown) + "|",
    ]
    lines += ["| " + " | ".join(column.cell(row) for column in shown) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _used(columns: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    return [c for c in columns if any(row.get(c.key) is not None for row in rows)]
