# SPDX-License-Identifier: Apache-2.0
"""Warming on real servers: answers, hits, the endpoint, flushes, metrics, keys."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from served import KEY, PAGE, REQUESTS, answers, states, wait_warm

from harness import ClosedLoop, Request, ServerError, drive, require_success

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

# Requests of six stems in turn; together the stems exceed the pool of 4,096 tokens.
STEMS, STEM_TOKENS = 6, 760
QUEUED = [
    Request(f"Stem {'abcdef'[stem]}. " + "A shared beginning. " * 38 + f"Question {n}", 4)
    for n in range(6)
    for stem in range(STEMS)
]


@pytest.fixture(scope="module")
def plain_answers(serve_with):
    server = serve_with({"schedule_policy": "lpm", "page_size": PAGE}, name="plain")
    server.flush_cache()
    return answers(server)[0]


@pytest.fixture
def hints(serve_with, prompt_file):
    """Orders by prefix and by hint; two run, the rest waits."""
    return serve_with(
        {
            "schedule_policy": "lpm",
            "page_size": PAGE,
            "cache_warming_prompts": prompt_file,
            "cache_warming_mode": "tree",
            "disable_overlap_schedule": True,
            "schedule_policy_config": {"aging": "tokens", "matches_per_pass": 8},
            "max_running_requests": 2,
        },
        name="hints",
    )


@pytest.fixture(scope="module")
def queued_alone(plain_answers, serve_with):
    """Answers of ``QUEUED``, one at a time, by the server of ``plain_answers``."""
    server = serve_with({"schedule_policy": "lpm", "page_size": PAGE}, name="plain")
    server.flush_cache()
    return tokens_of(drive(server.url, QUEUED, ClosedLoop(1)))


def tokens_of(results):
    require_success(results)
    return [result.output_ids for result in results]


def test_hints_change_no_answer_and_are_no_cache(hints, plain_answers):
    server = hints
    server.flush_cache()
    wait_warm(server)
    (first,) = drive(server.url, REQUESTS[:1])
    assert first.cached_tokens == 0
    server.flush_cache()
    assert answers(server)[0] == plain_answers
    assert server.metrics().total("sglang:cache_warming_tokens_total") == 0


def test_a_long_queue_in_prefix_order_gives_the_same_answers(hints, queued_alone):
    hints.flush_cache()
    results = drive(hints.url, QUEUED, ClosedLoop(len(QUEUED)))
    assert tokens_of(results) == queued_alone
    # At best all but one of each stem; how many, depends on how fast they arrive. In order
    # of arrival none: the stems exceed the pool together, so each has left it by its turn.
    hits = sum(result.cached_tokens >= STEM_TOKENS // 2 for result in results)
    assert hits >= 2 * STEMS


def test_requests_that_are_given_up_leave_the_queue(hints):
    with ThreadPoolExecutor(24) as pool:
        running = [pool.submit(hints.generate, f"{n} {QUEUED[n].prompt}", 24) for n in range(24)]
        hints.request("POST", "/abort_request", json={"abort_all": True})
        replies = [one.result() for one in running]
    assert all("meta_info" in reply for reply in replies)
    assert len(hints.generate(QUEUED[0].prompt, 4)["output_ids"]) == 4, "it still serves"


def test_first_requests_hit_what_was_warmed(plain_answers, warm):
    prompts = wait_warm(warm, KEY)
    assert prompts["chat"]["pinned"]
    for prompt in prompts.values():
        assert prompt["cached_tokens"] == prompt["tokens"] // PAGE * PAGE
    got, results = answers(warm)
    assert got == plain_answers
    for result, name in zip(results, ("manual", "manual", "chat", "ids"), strict=False):
        assert result.cached_tokens >= 0.95 * prompts[name]["tokens"]
    # The same tokens in another namespace, and another text, were not warmed.
    assert results[4].cached_tokens == 0
    assert results[5].cached_tokens < 2 * PAGE


def test_warming_shows_in_its_own_metrics_only(warm):
    wait_warm(warm, KEY)
    with warm.measured() as change:
        warm.request("POST", "/flush_cache", headers=KEY)
        wait_warm(warm, KEY)
    own = {
        name: change[0].total(f"sglang:cache_warming_{name}_total")
        for name in ("prompts", "tokens", "seconds", "rewarmed", "aborted", "served_tokens")
    }
    prompts, rank = states(warm, KEY)
    assert (
        own["tokens"] == rank["warmed_tokens"] == sum(p["cached_tokens"] for p in prompts.values())
    )
    assert own["rewarmed"] == 3
    assert own["prompts"] == own["aborted"] == own["served_tokens"] == 0
    assert own["seconds"] > 0
    for name in ("prompt_tokens", "generation_tokens", "num_requests", "cached_tokens"):
        assert change[0].total(f"sglang:{name}_total") == 0
    with warm.measured() as change:
        (result,) = drive(warm.url, REQUESTS[:1])
    assert change[0].total("sglang:cache_warming_served_tokens_total") == result.cached_tokens


def test_a_flush_right_away_is_not_refused(warm):
    """Steps in flight must not make the engine look busy to a flush."""
    for _ in range(10):
        warm.request("POST", "/flush_cache", headers=KEY)
        time.sleep(0.02)
    wait_warm(warm, KEY)


def test_prompts_are_added_and_removed_while_serving(warm):
    added = warm.request(
        "POST",
        "/cache_warming",
        json={"prompts": [{"text": "Added later. " * 12}, {"name": "two", "text": "two " * 20}]},
        headers=KEY,
    ).json()
    assert added["message"] == "added 'prompt-0', 'two'"
    wait_warm(warm, KEY)
    (result,) = drive(warm.url, [Request("Added later. " * 12 + "So?", 4)])
    assert result.cached_tokens >= 0.95 * len("Added later. " * 12)
    removed = warm.request(
        "DELETE", "/cache_warming", json={"names": ["prompt-0", "two"]}, headers=KEY
    ).json()
    assert removed["message"] == "removed 'prompt-0', 'two'"
    assert set(states(warm, KEY)[0]) == {"manual", "chat", "ids"}


@pytest.mark.parametrize(
    ("method", "body", "expected"),
    [
        ("POST", {"prompts": [{"txt": "x"}]}, "unknown key 'txt'"),
        ("POST", {"prompts": [{"name": "chat", "text": "x"}]}, "'chat' is taken"),
        ("POST", {"prompts": [{"input_ids": [1] * 5000}]}, "has 5000 tokens"),
        ("POST", {"prompts": [{"input_ids": [99999]}]}, "outside the vocabulary"),
        ("POST", {"prompts": [{"text": "a", "lora": "none"}, {}]}, "exactly one of"),
        ("POST", {"entries": []}, "of the form"),
        ("DELETE", {"names": ["nobody"]}, "no prompt is called 'nobody'; the names are 'chat'"),
        ("DELETE", {"names": "chat"}, "must be a list of strings"),
    ],
)
def test_bad_requests_are_answered_and_change_nothing(warm, method, body, expected):
    before = set(states(warm, KEY)[0])
    with pytest.raises(ServerError, match="gave 400") as caught:
        warm.request(method, "/cache_warming", json=body, headers=KEY)
    assert expected in str(caught.value)
    assert set(states(warm, KEY)[0]) == before


def test_the_endpoint_follows_the_servers_keys(warm):
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(ServerError, match="gave 401"):
            warm.request("GET", "/cache_warming", headers=headers)


def test_pins_give_way_to_a_request_that_needs_the_pool(warm):
    """All of the pool but the pinned prompt is not enough for it."""
    prompts = wait_warm(warm, KEY)
    assert prompts["chat"]["pinned"]
    (result,) = drive(warm.url, [Request([5 + i % 200 for i in range(4000)], 4)], timeout_s=120)
    assert result.error is None, result.error
    assert wait_warm(warm, KEY)["chat"]["pinned"]
