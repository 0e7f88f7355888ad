# SPDX-License-Identifier: Apache-2.0
"""The clients: order, concurrency, timing and errors, on a fake server."""

from __future__ import annotations

import math

import pytest

from harness import ClosedLoop, OpenLoop, Request, drive, require_success, serve, summarize
from support.fakes import fake


def sent_order(results) -> list[int]:
    """Returns the results' indices in the order in which the server saw them."""
    return [r.index for r in sorted(results, key=lambda result: result.meta["order"])]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    spec = fake(token_seconds=0.02)
    with serve(spec, log_dir=tmp_path_factory.mktemp("logs")) as (running,):
        yield running


def test_tokens_are_counted_and_timed(server):
    (result,) = drive(server.url, [Request("hello", max_new_tokens=10)])
    assert result.error is None
    assert (result.prompt_tokens, result.cached_tokens, result.completion_tokens) == (10, 4, 10)
    assert result.text == "x" * 10 and result.output_ids == [1] * 10
    assert len(result.itl_s) == 9
    assert result.ttft_s >= 0.02
    assert math.isclose(result.ttft_s + sum(result.itl_s), result.latency_s, rel_tol=0.2)


def test_a_chunk_of_several_tokens_counts_as_equal_gaps(tmp_path):
    with serve(fake(token_seconds=0.03, chunk=4), log_dir=tmp_path) as (server,):
        (result,) = drive(server.url, [Request("hello", max_new_tokens=12)])
    first, second, third = result.itl_s[:3], result.itl_s[3:7], result.itl_s[7:]
    assert len(third) == 4 and not any(first)
    for gaps in (second, third):
        assert min(gaps) > 0 and max(gaps) == pytest.approx(min(gaps))
    # The request is sent a token's time before the first token at least.
    assert 12 * 0.03 / 4 <= result.ttft_s + sum(result.itl_s) <= result.latency_s


def test_chat_goes_to_the_chat_endpoint(server):
    (result,) = drive(server.url, [Request([{"role": "user", "content": "hi"}], 3)])
    assert result.error is None
    assert result.text == "w0 w1 w2 "
    assert (result.prompt_tokens, result.cached_tokens, result.completion_tokens) == (12, 7, 3)
    assert len(result.itl_s) == 2 and result.finish_reason == "length"


@pytest.mark.parametrize("concurrency", [1, 3])
def test_closed_loop_keeps_so_many_requests_under_way(tmp_path, concurrency):
    with serve(fake(token_seconds=0.02), log_dir=tmp_path) as (server,):
        requests = [Request(str(n), 4) for n in range(9)]
        results = drive(server.url, requests, ClosedLoop(concurrency))
        require_success(results)
        assert server.post("/state")["most"] == concurrency
    if concurrency == 1:
        assert sent_order(results) == list(range(9))


def test_open_loop_sends_at_arrival_times_whether_or_not_earlier_ones_ended(server):
    requests = [Request("long", 60, arrival_s=0.0), Request("short", 1, arrival_s=0.1)]
    ended = []
    results = drive(server.url, requests, OpenLoop(), lambda result: ended.append(result.index))
    require_success(results)
    assert ended == [1, 0]
    assert results[1].meta["order"] == results[0].meta["order"] + 1


@pytest.mark.parametrize("schedule", [ClosedLoop(4), OpenLoop(limit=1), OpenLoop()])
def test_turns_of_a_session_wait_for_each_other(server, schedule):
    requests = [Request(str(n), 3, session=str(n % 2)) for n in range(8)]
    results = drive(server.url, requests, schedule)
    require_success(results)
    order = sent_order(results)
    for session in (0, 1):
        turns = [index for index in order if index % 2 == session]
        assert turns == sorted(turns)


def test_failures_are_results_and_do_not_end_the_run(server):
    requests = [Request("refuse"), Request("break off", 5), Request("fine", 2)]
    seen = []
    results = drive(server.url, requests, on_result=lambda result: seen.append(result.index))
    assert "HTTP 400" in results[0].error and "refused" in results[0].error
    assert "broke off" in results[1].error
    assert results[2].error is None
    assert seen == [0, 1, 2]
    with pytest.raises(RuntimeError, match="2 of 3 requests failed: #0: HTTP 400"):
        require_success(results)


def test_a_server_that_is_gone_gives_errors(tmp_path):
    with serve(fake(), log_dir=tmp_path) as (server,):
        pass
    (result,) = drive(server.url, [Request("hello")])
    assert "ClientConnectorError" in result.error


def test_a_timeout_is_an_error_of_that_request(server):
    results = drive(server.url, [Request("slow", 100), Request("quick", 1)], timeout_s=0.3)
    assert "TimeoutError" in results[0].error and results[1].error is None


def test_the_summary_counts_only_what_succeeded(server):
    requests = [Request("a", 2), Request("refuse", 2), Request("b", 2)]
    summary = summarize(drive(server.url, requests))
    assert (summary.requests, summary.failed) == (3, 1)
    assert (summary.prompt_tokens, summary.cached_tokens) == (20, 8)
    assert summary.hit_ratio == pytest.approx(0.4)
    assert 0.02 <= summary.ttft_p50_s <= summary.ttft_p90_s <= summary.latency_p99_s


def test_bad_schedules_are_refused():
    with pytest.raises(ValueError, match="concurrency must be at least 1"):
        ClosedLoop(0)
    with pytest.raises(ValueError, match="speed must be above 0"):
        OpenLoop(speed=0)
