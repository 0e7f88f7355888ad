# SPDX-License-Identifier: Apache-2.0
"""The cost benchmark without a server: its timing runs, its drawing draws, its limit bites."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import Metrics

pytest.importorskip("sglang.srt.speculative.observability")
from spec_observability import command, cost, served

RECORDED = Path(__file__).parent / "recorded"


def test_every_shape_is_timed_as_on_a_server():
    rows = command._costs(5, 0, (1, 3))
    assert [(r["shape"], r["batch"]) for r in rows] == [(s, n) for s in cost.SHAPES for n in (1, 3)]
    assert all(row["us_per_step"] > 0 for row in rows)


@pytest.mark.parametrize(("us", "code"), [(500.0, 0), (700.0, 1)])
def test_the_limit_is_one_percent_of_the_step(us, code, monkeypatch, tmp_path, capsys):
    steps = [
        {"arm": "NGRAM", "concurrency": 1, "requests": 1.0, "mean_ms": 65.0, "step_ms": 60.0},
        {"arm": "NGRAM", "concurrency": 4, "requests": 3.9, "mean_ms": 210.0, "step_ms": 200.0},
    ]
    costs = [
        {"shape": "chain", "batch": 1, "us_per_step": us},
        {"shape": "chain", "batch": 4, "us_per_step": 900.0},
        {"shape": "chain", "batch": 16, "us_per_step": 9000.0},  # no step of that size served
    ]
    monkeypatch.setattr(command, "_serve", lambda full: (steps, []))
    monkeypatch.setattr(command, "_costs", lambda *_: costs)
    path = tmp_path / "out.json"
    options = SimpleNamespace(full=False, seed=0, json=path, plot=None, scrapes=None)
    assert command.run(options) == code
    rows = [row for row in json.loads(path.read_text())["results"] if row["kind"] == "cost"]
    assert [row["against_ms"] for row in rows] == [60.0, 200.0, 60.0]
    assert rows[0]["share"] == pytest.approx(us / 60000)
    assert "Worst at the batch sizes served" in capsys.readouterr().out


def test_steps_are_read_from_the_stages():
    text = (
        "# TYPE sglang:spec_stage_seconds histogram\n"
        'sglang:spec_stage_seconds_sum{stage="verify"} 4\n'
        'sglang:spec_stage_seconds_count{stage="verify"} 50\n'
        'sglang:spec_stage_seconds_sum{stage="lookup"} 1\n'
        'sglang:spec_stage_seconds_sum{stage="draft_prefill"} 100\n'
        "# TYPE sglang:spec_steps_total counter\nsglang:spec_steps_total 50\n"
        "# TYPE sglang:spec_step_accepted_tokens histogram\n"
        "sglang:spec_step_accepted_tokens_count 200\n"
    )
    interval = Metrics.parse(text)
    assert served.step_ms(interval) == pytest.approx(100.0)
    assert served.batch_size(interval) == 4


def test_the_least_disturbed_stretch_counts():
    def scrape(steps, seconds):
        return served.Scrape(
            0.0,
            "# TYPE sglang:spec_stage_seconds histogram\n"
            f'sglang:spec_stage_seconds_sum{{stage="verify"}} {seconds}\n'
            f'sglang:spec_stage_seconds_count{{stage="verify"}} {steps}\n',
        )

    # 500, then 60, 70 and 900 ms a step; the last stretch is too short to count.
    made = [
        scrape(*at) for at in ((1, 0.5), (11, 5.5), (21, 6.1), (31, 6.8), (41, 15.8), (42, 15.81))
    ]
    assert served.best_step_ms(made) == pytest.approx(60.0)


def test_the_dashboard_is_drawn_from_scrapes(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("promql_parser")
    from spec_observability.draw import draw

    text = (RECORDED / "eagle.prom").read_text()
    scrapes = [served.Scrape(float(t), text) for t in range(0, 40, 5)]
    draw(tmp_path / "board.png", scrapes)
    assert (tmp_path / "board.png").stat().st_size > 10_000
    served.write_scrapes(tmp_path / "scrapes.jsonl", scrapes)
    lines = (tmp_path / "scrapes.jsonl").read_text().splitlines()
    assert [json.loads(line)["at_s"] for line in lines] == [s.at_s for s in scrapes]
