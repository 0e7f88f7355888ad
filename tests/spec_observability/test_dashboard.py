# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard and the alert rules: valid, and about metrics that exist.

What validates them: the dashboard is read and written back unchanged by Grafana's Foundation SDK,
which is generated from Grafana's schemas; queries are parsed by ``promql-parser``, and the rule file
is checked by ``promtool`` where it is installed and by its structure everywhere.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import shutil
import subprocess
from pathlib import Path

import pytest

from harness import Metrics

pytest.importorskip("promql_parser", reason="needs promql-parser")
from spec_observability import draw
from spec_observability.promql import Series, Unsupported, metric_names

GRAFANA = draw.DASHBOARD.parent
RECORDED = Path(__file__).parent / "recorded"
DASHBOARD = json.loads(draw.DASHBOARD.read_text())
QUERIES = list(draw.queries(DASHBOARD))


def recorded():
    return {p.stem: Metrics.parse(p.read_text()) for p in sorted(RECORDED.glob("*.prom"))}


def rules():
    yaml = pytest.importorskip("yaml")
    groups = yaml.safe_load((GRAFANA / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_file_is_what_the_script_builds():
    pytest.importorskip("grafana_foundation_sdk")
    spec = importlib.util.spec_from_file_location("built", GRAFANA / "build_dashboard.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.build() == draw.DASHBOARD.read_text()


def through_grafanas_schema(board):
    """The dashboard, read and written by Grafana's SDK, panels and queries included."""
    pytest.importorskip("grafana_foundation_sdk")
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()  # else panels and queries are passed through unread
    return json.loads(JSONEncoder().encode(Dashboard.from_json(board)))


def test_grafanas_schema_reads_it_back_unchanged():
    assert through_grafanas_schema(DASHBOARD) == DASHBOARD


@pytest.mark.parametrize("spoil", ["a misspelt field", "an unknown query field", "a wrong kind"])
def test_the_schema_notices(spoil):
    board = json.loads(draw.DASHBOARD.read_text())
    panel = next(draw.panels(board))
    if spoil == "a misspelt field":
        panel["titel"] = panel.pop("title")
    elif spoil == "an unknown query field":
        panel["targets"][0]["expression"] = "up"
    else:
        board["time"] = ["now-1h", "now"]
    try:
        again = through_grafanas_schema(board)
    except (TypeError, ValueError, AttributeError):
        return
    assert again != board


def test_panels_have_their_own_place():
    shown = list(draw.panels(DASHBOARD))
    assert len(shown) >= 9
    assert all(panel["title"] and panel["description"] and panel["targets"] for panel in shown)
    for one, other in itertools.combinations((p["gridPos"] for p in shown), 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart


@pytest.mark.parametrize(("title", "legend", "query"), QUERIES, ids=[q[1] for q in QUERIES])
def test_every_metric_of_a_query_is_exported_by_real_servers(title, legend, query):
    names = metric_names(query)
    assert names
    for server, metrics in recorded().items():
        for name in names:
            assert name in metrics, f"{server}: {name} of {title!r}"


@pytest.mark.parametrize("name", ["ngram", "sam", "eagle", "standalone"])
def test_every_query_gives_numbers_on_real_scrapes(name):
    metrics = recorded()[name]
    doubled = Metrics({k: 2 * v for k, v in metrics.samples.items()}, metrics.kinds)
    series = Series([(0.0, metrics), (10.0, doubled)])
    for title, legend, query in QUERIES:
        found = series.evaluate(query, 10.0)
        assert found, title
        for labels, value in found.items():
            assert math.isfinite(value) and value >= 0, (title, legend, dict(labels))
            if title.startswith(("Accepted of", "Acceptance by", "KV slots overwritten")):
                assert value <= 1


def test_evaluation_of_a_known_scrape():
    def at(second, a, b):
        text = (
            "# TYPE a counter\n"
            f'a_total{{m="x",s="1"}} {a}\na_total{{m="x",s="2"}} {2 * a}\na_total{{m="y",s="1"}} 5\n'
            f'# TYPE b counter\nb_total{{m="x",s="1"}} {b}\n'
        )
        return float(second), Metrics.parse(text)

    series = Series([at(0, 0, 0), at(5, 10, 3), at(10, 30, 6)])

    def value(query):
        return {tuple(sorted(k)): v for k, v in series.evaluate(query, 10).items()}

    assert value("sum (rate(a_total[10s]))") == {(): 9.0}
    assert value('sum by (s) (rate(a_total{m=~"x|z"}[5s]))') == {
        (("s", "1"),): 4.0,
        (("s", "2"),): 8.0,
    }
    assert value('1 + sum (rate(b_total[10s])) / sum (rate(a_total{m!="y"}[10s]))') == {
        (): pytest.approx(1 + 0.6 / 9)
    }
    assert value('sum by (s) (a_total{m!~"x"})') == {(("s", "1"),): 5.0}
    assert series.evaluate("rate(a_total[1s])", 10) == {}
    with pytest.raises(Unsupported):
        series.evaluate("histogram_quantile(0.9, a_total)", 10)


def test_alert_rules_are_well_formed():
    known = set(itertools.chain.from_iterable(m.kinds for m in recorded().values()))
    made = {rule["record"] for rule in rules() if "record" in rule}
    alerts = [rule for rule in rules() if "alert" in rule]
    assert alerts and made
    for rule in rules():
        assert metric_names(rule["expr"]) <= known | made
        kind = {"alert", "expr", "for", "labels", "annotations"}
        assert set(rule) == (kind if "alert" in rule else {"record", "expr"})
    for alert in alerts:
        assert alert["labels"]["severity"] in ("info", "warning")
        assert alert["annotations"].keys() == {"summary", "description"}


def test_promtool_accepts_the_rules():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    subprocess.run([promtool, "check", "rules", str(GRAFANA / "alerts.yaml")], check=True)


def test_every_metric_is_documented(repository):
    from sglang.srt.speculative.observability import metrics, stages, summary

    text = (repository / "docs" / "observability.md").read_text()
    tables = (
        metrics.COUNTERS,
        metrics.POSITION_COUNTERS,
        metrics.SOURCE_COUNTERS,
    )
    names = [f"{metrics.PREFIX}{name}_total" for table in tables for name in table]
    names += [f"{metrics.PREFIX}{name}" for name in (*metrics.GAUGES, *metrics.HISTOGRAMS)]
    names.append(f"{metrics.PREFIX}{metrics.STAGE_HISTOGRAM}")
    for name in (*names, *stages.STAGES, *summary.RequestSummary().meta_info()):
        assert f"`{name}`" in text, name
