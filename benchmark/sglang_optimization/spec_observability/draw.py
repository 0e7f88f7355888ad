# SPDX-License-Identifier: Apache-2.0
"""Draws the panels of ``docs/grafana/speculative-decoding.json`` from recorded scrapes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import plot
from harness import Metrics

from .promql import Series
from .served import Scrape

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = ROOT / "docs" / "grafana" / "speculative-decoding.json"
# What Grafana would put in: the variables of the dashboard and of the time range.
RANGE_S = 10
VARIABLES = {"$__rate_interval": f"{RANGE_S}s", "$model": ".*"}


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The panels with queries, in their order."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panels({"panels": panel.get("panels") or []})
        else:
            yield panel


def queries(dashboard: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(panel title, legend, PromQL with the variables put in)."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield panel["title"], target.get("legendFormat", ""), fill_in(target["expr"])


def fill_in(expression: str) -> str:
    """A query as Grafana sends it."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def legend(template: str, labels: dict[str, str]) -> str:
    """A legend with the labels put in."""
    return re.sub(r"{{\s*(\w+)\s*}}", lambda m: labels.get(m[1], ""), template)


def draw(path: Path, scrapes: list[Scrape]) -> None:
    """Writes a figure with every panel of the dashboard.

    Raises:
        BenchError: matplotlib is missing or the file cannot be written.
    """
    series = Series([(s.at_s, Metrics.parse(s.text)) for s in scrapes])
    dashboard = json.loads(DASHBOARD.read_text())
    shown = list(panels(dashboard))
    times = [s.at_s for s in scrapes if s.at_s >= RANGE_S]
    columns = 3
    rows = math.ceil(len(shown) / columns)
    with plot.figure(path, rows, columns, panel=(5.2, 3.2)) as (drawing, axes):
        drawing.suptitle(dashboard["title"])
        for place, panel in zip(axes.flat, shown, strict=False):
            lines = _lines(panel, series, times)
            _panel(place, panel, lines, times)


def _lines(panel: dict[str, Any], series: Series, times: list[float]) -> dict[str, list[float]]:
    lines: dict[str, list[float]] = {}
    for target in panel["targets"]:
        query = fill_in(target["expr"])
        for i, at_s in enumerate(times):
            for labels, value in series.evaluate(query, at_s).items():
                name = legend(target.get("legendFormat", ""), dict(labels))
                line = lines.setdefault(name, [math.nan] * len(times))
                line[i] = value
    return lines


def _panel(place: Any, panel: dict[str, Any], lines: dict, times: list[float]) -> None:
    options = panel["fieldConfig"]["defaults"]
    scale = {"percentunit": 100.0, "s": 1e3}.get(options.get("unit", ""), 1.0)
    unit = {"percentunit": "%", "s": "ms", "cps": "tokens/s"}.get(options.get("unit", ""), "")
    stacked = (options.get("custom") or {}).get("stacking", {}).get("mode") == "normal"
    names = sorted(lines, key=_order)
    values = [[scale * v for v in lines[name]] for name in names]
    if stacked:
        place.stackplot(
            times,
            [[0.0 if math.isnan(v) else v for v in line] for line in values],
            labels=names,
            colors=plot.COLOURS,
            alpha=0.7,
        )
    else:
        for i, (name, line) in enumerate(zip(names, values, strict=True)):
            place.plot(times, line, label=name, color=plot.COLOURS[i % len(plot.COLOURS)])
    place.set_title(panel["title"], fontsize=10)
    place.set_ylabel(unit)
    place.set_xlabel("s", fontsize=8)
    place.set_ylim(bottom=0)
    place.grid(alpha=0.3)
    place.legend(fontsize=7, loc="upper left", ncols=2 if len(names) > 4 else 1)


def _order(name: str) -> tuple:
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))
