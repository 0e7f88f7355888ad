# SPDX-License-Identifier: Apache-2.0
"""The report: on recorded scrapes of real servers, on made-up ones, and on bad input."""

from __future__ import annotations

import http.server
import io
import json
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("sglang.srt.observability.spec_report.verdicts")
from sglang.srt.observability.spec_report import __main__ as command
from sglang.srt.observability.spec_report.analysis import analyse
from sglang.srt.observability.spec_report.render import print_report, tables
from sglang.srt.observability.spec_report.scrape import (
    ReportError,
    fetch,
    metrics_url,
    parse,
    two_scrapes,
)
from sglang.srt.observability.spec_report.verdicts import Thresholds, judge

RECORDED = Path(__file__).parent / "recorded"


def scrape(
    steps=1000,
    positions=((1000, 1000, 600), (1000, 1000, 300), (1000, 1000, 150)),
    stages=(("draft", 2.0), ("verify", 20.0), ("draft_extend", 2.0)),
    width=4,
    discarded=0,
    reserved=8,
    unneeded=2,
    model="m",
):
    """A scrape of ``steps`` request steps; positions are (offered, drafted, accepted)."""
    labels = f'model_name="{model}",tp_rank="0"'
    drafted = sum(p[1] for p in positions)
    accepted = sum(p[2] for p in positions)
    hits = [steps, *(p[2] for p in positions)]
    exactly = [a - b for a, b in zip(hits, [*hits[1:], 0])]
    lines = []

    def add(name, value, more="", kind=None):
        lines.append(f"sglang:spec_{name}{{{labels}{more}}} {value}")

    def head(name, kind):
        lines.append(f"# TYPE sglang:spec_{name} {kind}")

    for name, value in {
        "steps": steps,
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "discarded_tokens": discarded,
        "discarded_request_steps": 0,
        "kv_slots_written": steps * width,
        "kv_slots_overwritten": steps * (width - 1) - accepted,
        "kv_reserve_slot_steps": steps * reserved,
        "kv_reserve_unneeded_slot_steps": steps * unneeded,
    }.items():
        head(f"{name}_total", "counter")
        add(f"{name}_total", value)
    for i, name in enumerate(("offered_steps", "drafted_tokens", "accepted_tokens")):
        head(f"position_{name}_total", "counter")
        for position, counts in enumerate(positions, start=1):
            add(f"position_{name}_total", counts[i], f',position="{position}"')
    for name, value in (("drafted", drafted), ("accepted", accepted)):
        head(f"source_{name}_tokens_total", "counter")
        add(f"source_{name}_tokens_total", value, ',source="draft_model",match_length="unknown"')
    head("step_accepted_tokens", "histogram")
    total = 0
    for value, count in enumerate(exactly):
        total += count
        add("step_accepted_tokens_bucket", total, f',le="{value}.0"')
    add("step_accepted_tokens_bucket", total, ',le="+Inf"')
    add("step_accepted_tokens_count", total)
    add("step_accepted_tokens_sum", accepted)
    head("stage_seconds", "histogram")
    for stage, seconds in stages:
        more = f',stage="{stage}",clock="device"'
        add("stage_seconds_bucket", steps, more + ',le="+Inf"')
        add("stage_seconds_count", steps, more)
        add("stage_seconds_sum", seconds, more)
    return "\n".join(lines) + "\n"


def topics(text, **limits):
    return [(v.level, v.topic) for v in judge(analyse(parse(text)), Thresholds(**limits))]


def test_a_healthy_server_gets_one_good_word():
    assert topics(scrape()) == [("ok", "speculation")]


def test_numbers():
    found = analyse(parse(scrape()))
    assert found.tokens_per_step == pytest.approx(2.05)
    assert found.drafted_per_step == 3
    assert found.accept_rate == pytest.approx(0.35)
    assert found.width == 4
    assert [p.rate for p in found.positions] == pytest.approx([0.6, 0.3, 0.15])
    assert found.overhead_seconds == 4 and found.verify_seconds == 20
    assert found.accepted_p95 == 3
    assert [s.name for s in found.stages] == ["draft", "verify", "draft_extend"]
    assert found.stages[1].mean_ms == 20


@pytest.mark.parametrize(
    ("draft", "level"), [(9.0, None), (12.0, "warning"), (19.0, "warning"), (21.5, "bad")]
)
def test_slow_drafts(draft, level):
    # A gain of 1.05 tokens: half of it is 10.5 s of 20 s of verification, all of it 21 s.
    found = {t: lv for lv, t in topics(scrape(stages=(("draft", draft), ("verify", 20.0))))}
    assert found.get("draft too slow") == level


def test_slow_drafts_name_the_slowest_stage():
    text = scrape(stages=(("lookup", 30.0), ("tree_build", 1.0), ("verify", 20.0)))
    verdict = judge(analyse(parse(text)))[0]
    assert verdict.level == "bad" and "lookup (30 ms)" in verdict.text


def test_prefill_of_the_draft_model_is_no_part_of_a_step():
    text = scrape(stages=(("draft", 2.0), ("verify", 20.0), ("draft_prefill", 500.0)))
    assert topics(text) == [("ok", "speculation")]


def test_positions_that_are_not_accepted():
    positions = ((1000, 1000, 600), (1000, 1000, 300), (1000, 1000, 20), (1000, 1000, 1))
    verdict = judge(analyse(parse(scrape(positions=positions, width=5))))[0]
    assert verdict.topic == "acceptance too low"
    assert "Beyond position 2" in verdict.text and "--speculative-num-steps 2" in verdict.text


def test_nothing_accepted_is_bad():
    positions = ((1000, 1000, 10), (1000, 1000, 1))
    found = topics(scrape(positions=positions, width=3))
    assert ("bad", "acceptance too low") in found and ("bad", "draft too slow") in found


def test_rare_deep_positions_are_left_alone():
    positions = ((1000, 1000, 600), (1000, 1000, 300), (100, 100, 1))
    assert topics(scrape(positions=positions)) == [("ok", "speculation")]


def test_a_width_that_is_not_filled():
    verdict = judge(analyse(parse(scrape(width=12))))[0]
    assert verdict.topic == "width too large"
    assert "--speculative-num-draft-tokens 4" in verdict.text


def test_a_wide_tree_of_which_little_is_accepted():
    # Eleven drafts, .15 accepted: 95 % accept at most one.
    positions = ((1000, 11000, 150),)
    found = list(judge(analyse(parse(scrape(positions=positions, width=12)))))
    assert "width too large" in [v.topic for v in found]


def test_discarded_and_reserved():
    found = topics(scrape(discarded=2000, reserved=100, unneeded=90))
    assert found == [("warning", "drafts discarded"), ("warning", "reserve too large")]


def test_too_little_traffic_gets_no_verdict():
    few = tuple(tuple(n // 20 for n in p) for p in ((1000, 1000, 600),))
    assert topics(scrape(steps=50, positions=few)) == [("warning", "traffic")]


def test_thresholds_can_be_chosen():
    assert topics(scrape(), position_rate=0.2) == [("warning", "acceptance too low")]


def test_an_interval_is_the_difference():
    texts = iter([scrape(), scrape(steps=3000, stages=(("verify", 50.0), ("draft", 2.0)))])
    slept = []
    found = analyse(two_scrapes(lambda: next(texts), 2.5, slept.append))
    assert slept == [2.5]
    assert found.steps == 2000
    assert found.verify_seconds == 30


def test_one_model_of_several():
    text = scrape(model="a") + scrape(steps=10, positions=((10, 10, 1),), model="b")
    assert analyse(parse(text, "b")).steps == 10
    with pytest.raises(ReportError, match="of model 'c'"):
        two_scrapes(lambda: text, 0, lambda s: None, "c")


def test_no_traffic_restart_and_no_metrics():
    with pytest.raises(ReportError, match="nothing was decoded .* within 5 seconds"):
        two_scrapes(scrape, 5, lambda s: None)
    texts = iter([scrape(), scrape(steps=10)])
    with pytest.raises(ReportError, match="restarted"):
        two_scrapes(lambda: next(texts), 5, lambda s: None)
    with pytest.raises(ReportError, match="--speculative-algorithm or --enable-metrics"):
        two_scrapes(lambda: "# TYPE up gauge\nup 1\n", 0, lambda s: None)
    with pytest.raises(ReportError, match="not in Prometheus' text format"):
        two_scrapes(lambda: "<html>hello</html>", 0, lambda s: None)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("localhost:30000", "http://localhost:30000/metrics"),
        ("http://h:1/", "http://h:1/metrics"),
        ("https://h/proxy/metrics", "https://h/proxy/metrics"),
        ("[::1]:30000", "http://[::1]:30000/metrics"),
    ],
)
def test_urls(url, address):
    assert metrics_url(url) == address


@pytest.mark.parametrize("url", ["", "http://", "ftp://h:1", "http://h:port", "http://h:99999"])
def test_bad_urls(url, capsys):
    assert command.main([url]) == 2
    assert f"{url!r} is not a server's URL" in capsys.readouterr().err


@pytest.mark.parametrize("interval", ["-1", "soon", "nan", "inf", "1e9"])
def test_bad_intervals(interval, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["localhost:1", f"--interval={interval}"])
    assert ended.value.code == 2
    assert "not a number of seconds from 0 to 86400" in capsys.readouterr().err


@pytest.fixture
def answering():
    """A server that answers with a status and a text; yields (url, answer to set)."""
    answer = [200, ""]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(answer[0])
            self.end_headers()
            self.wfile.write(answer[1].encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", answer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_servers_that_cannot_be_reported_on(answering, capsys):
    url, answer = answering
    answer[0] = 404
    assert command.main([url]) == 2
    assert "start the server with --enable-metrics" in capsys.readouterr().err
    answer[0] = 503
    assert command.main([url]) == 2
    assert "status 503" in capsys.readouterr().err
    assert command.main(["127.0.0.1:1"]) == 2
    assert "cannot reach http://127.0.0.1:1/metrics" in capsys.readouterr().err


def test_the_command_prints_tables_or_json(answering, capsys):
    url, answer = answering
    answer[1] = scrape()
    assert fetch(url) == answer[1]
    assert command.main([url, "--interval", "0"]) == 0
    text = capsys.readouterr().out
    assert "Acceptance by draft position" in text and "ok: speculation." in text
    assert command.main([url, "--interval", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens_per_step"] == pytest.approx(2.05)


@pytest.mark.parametrize("rich", [True, False])
def test_every_number_is_printed_with_and_without_rich(rich, monkeypatch):
    if rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    found = analyse(parse(scrape()))
    out = io.StringIO()
    print_report(found, judge(found), out)
    for table in tables(found):
        assert table.title in out.getvalue()
        for row in table.rows:
            line = [ln for ln in out.getvalue().splitlines() if all(cell in ln for cell in row)]
            assert line, row


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.prom")), ids=lambda p: p.stem)
def test_recorded_scrapes(path):
    found = analyse(parse(path.read_text()))
    assert found.request_steps > 0
    assert found.drafted >= found.accepted > 0
    assert sum(p.drafted for p in found.positions) == found.drafted
    assert sum(p.accepted for p in found.positions) == found.accepted
    assert sum(s.accepted for s in found.sources) == found.accepted
    assert {s.name for s in found.stages} >= {"tree_build", "verify"}
    assert judge(found)


def test_there_are_recorded_scrapes():
    assert {p.stem for p in RECORDED.glob("*.prom")} >= {"ngram", "sam", "eagle", "standalone"}
