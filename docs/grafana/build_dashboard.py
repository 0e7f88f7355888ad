#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the dashboard for speculative decoding, built with Grafana's own SDK.

    pip install grafana-foundation-sdk
    python docs/grafana/build_dashboard.py

The SDK is generated from Grafana's schemas, so what it builds, and what it reads back
unchanged (tests/spec_observability/test_dashboard.py), is a dashboard that Grafana loads.
"""

from __future__ import annotations

from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import DataSourceRef

OUTPUT = Path(__file__).with_name("speculative-decoding.json")
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
SELECT = 'model_name=~"$model"'


def rate(name: str, by: str = "", more: str = "") -> str:
    """Per second, over all ranks; ``by`` keeps labels."""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate(sglang:spec_{name}{{{SELECT}{more}}}[$__rate_interval]))"


def ratio(part: str, whole: str) -> str:
    return f"{part} / {whole}"


# Row, then panels of: title, unit, description, [(legend, expression)], stacked.
PANELS = {
    "What speculation gains": [
        (
            "Tokens a request gains in a step",
            "short",
            "Accepted drafts and the bonus token. 1 is plain decoding.",
            [
                (
                    "tokens",
                    "1 + "
                    + ratio(rate("step_accepted_tokens_sum"), rate("step_accepted_tokens_count")),
                )
            ],
            False,
        ),
        (
            "Accepted of drafted tokens",
            "percentunit",
            "Of the drafts on offer, not of the static width.",
            [
                ("all", ratio(rate("accepted_tokens_total"), rate("drafted_tokens_total"))),
                (
                    "{{source}}",
                    ratio(
                        rate("source_accepted_tokens_total", "source"),
                        rate("source_drafted_tokens_total", "source"),
                    ),
                ),
            ],
            False,
        ),
        (
            "Acceptance by draft position",
            "percentunit",
            "Of the request steps whose draft reached the position, those that accepted it.",
            [
                (
                    "position {{position}}",
                    ratio(
                        rate("position_accepted_tokens_total", "position"),
                        rate("position_offered_steps_total", "position"),
                    ),
                )
            ],
            False,
        ),
    ],
    "Where the time goes": [
        (
            "Mean time of a stage",
            "s",
            "Device time by events where there is a device, else host time.",
            [
                (
                    "{{stage}} ({{clock}})",
                    ratio(
                        rate("stage_seconds_sum", "stage, clock"),
                        rate("stage_seconds_count", "stage, clock"),
                    ),
                )
            ],
            False,
        ),
        (
            "Seconds a second in each stage",
            "percentunit",
            "How busy each stage keeps the scheduler's device or host.",
            [("{{stage}}", rate("stage_seconds_sum", "stage"))],
            True,
        ),
        (
            "Time of drafting by that of verification",
            "percentunit",
            "Speculation loses where this exceeds the tokens gained a step less one.",
            [
                (
                    "drafting / verification",
                    ratio(
                        rate(
                            "stage_seconds_sum",
                            more=', stage=~"lookup|draft|tree_build|draft_extend|index_update"',
                        ),
                        rate("stage_seconds_sum", more=', stage="verify"'),
                    ),
                )
            ],
            False,
        ),
    ],
    "What is wasted": [
        (
            "Drafts by outcome",
            "cps",
            "Tokens a second.",
            [
                ("accepted", rate("accepted_tokens_total")),
                ("rejected", rate("rejected_tokens_total")),
                ("discarded", rate("discarded_tokens_total")),
            ],
            True,
        ),
        (
            "KV slots overwritten of those written",
            "percentunit",
            "Slots that verification wrote for tokens that were not kept.",
            [
                (
                    "overwritten",
                    ratio(rate("kv_slots_overwritten_total"), rate("kv_slots_written_total")),
                )
            ],
            False,
        ),
        (
            "KV slots reserved beyond committed tokens",
            "short",
            "After the latest step, over all ranks.",
            [
                ("reserved", f"sum (sglang:spec_kv_reserved_slots{{{SELECT}}})"),
                (
                    "beyond the next step",
                    f"sum (sglang:spec_kv_reserve_unneeded_slots{{{SELECT}}})",
                ),
            ],
            False,
        ),
    ],
}


def panel(title: str, unit: str, text: str, queries: list, stacked: bool) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .title(title)
        .description(text)
        .unit(unit)
        .datasource(SOURCE)
        .min(0)
        .span(8)
        .height(8)
        .draw_style(GraphDrawStyle.LINE)
        .fill_opacity(30 if stacked else 0)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    if stacked:
        made = made.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    for i, (legend, expression) in enumerate(queries):
        made = made.with_target(
            prometheus.Dataquery()
            .ref_id(chr(ord("A") + i))
            .expr(expression)
            .legend_format(legend)
            .datasource(SOURCE)
        )
    return made


def build() -> str:
    """The dashboard's JSON."""
    board = (
        dashboard.Dashboard("SGLang speculative decoding")
        .uid("sglang-spec-decode")
        .description("Needs --enable-metrics and this fork. See docs/observability.md.")
        .tags(["sglang", "speculative-decoding"])
        .time("now-1h", "now")
        .refresh("30s")
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
        .with_variable(
            dashboard.QueryVariable("model")
            .label("Model")
            .datasource(SOURCE)
            .query("label_values(sglang:spec_steps_total, model_name)")
            .include_all(True)
            .multi(True)
        )
    )
    for row, panels in PANELS.items():
        board = board.with_row(dashboard.Row(row))
        for described in panels:
            board = board.with_panel(panel(*described))
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(build())
    print(f"wrote {OUTPUT.name}")
