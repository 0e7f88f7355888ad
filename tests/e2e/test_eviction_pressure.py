# SPDX-License-Identifier: Apache-2.0
"""Adaptive eviction changes what is cached, never what is answered.

Both servers replay one conversation with a pool far smaller than the traffic's working set.
"""

from __future__ import annotations

import re

import pytest

from harness import ClosedLoop, Conversations, drive, require_success, summarize

pytestmark = pytest.mark.e2e

TRAFFIC = Conversations(
    agents=6,
    turns=(3, 4),
    visitors=8,
    scans=2,
    system_words=20,
    user_words=(5, 12),
    reply_words=(5, 15),
    scan_words=(80, 120),
    max_new_tokens=6,
)
POOL_TOKENS = 3072


@pytest.fixture(scope="module")
def replays(serve_with):
    """Returns results and metric changes for each policy."""
    found = {}
    for policy in ("lru", "adaptive"):
        flags = {"radix_eviction_policy": policy, "max_total_tokens": POOL_TOKENS}
        server = serve_with(flags, name=policy)
        server.flush_cache()
        with server.measured() as changes:
            results = drive(server.url, TRAFFIC.requests(seed=5), ClosedLoop(2))
        require_success(results)
        found[policy] = results, changes[0]
    return found


def test_greedy_answers_are_the_same(replays):
    texts = {policy: [r.text for r in results] for policy, (results, _) in replays.items()}
    assert texts["adaptive"] == texts["lru"]
    assert len(set(texts["lru"])) > len(texts["lru"]) / 2, "the answers depend on the prompts"


@pytest.mark.parametrize("policy", ["lru", "adaptive"])
def test_the_pool_is_under_pressure_and_still_hits(replays, policy):
    results, changes = replays[policy]
    summary = summarize(results)
    assert summary.prompt_tokens > 3 * POOL_TOKENS
    assert changes.total("sglang:evicted_tokens_total") > POOL_TOKENS
    assert 0 < summary.hit_ratio < 1


@pytest.mark.parametrize("policy", ["lru", "adaptive"])
def test_clients_and_metrics_agree_on_cached_tokens(replays, policy):
    results, changes = replays[policy]
    summary = summarize(results)
    assert changes.total("sglang:cached_tokens_total") == summary.cached_tokens
    assert changes.total("sglang:prompt_tokens_total") == summary.prompt_tokens


@pytest.mark.parametrize("policy", ["lru", "adaptive"])
def test_every_token_slot_is_accounted_for_afterwards(replays, serve_with, policy):
    """Nothing is leaked or freed twice: free plus evictable slots make up the whole pool."""
    flags = {"radix_eviction_policy": policy, "max_total_tokens": POOL_TOKENS}
    server = serve_with(flags, name=policy)
    server.flush_cache()
    server.generate("one more request, so that the gauges are written", 4)
    gauges = server.metrics()
    free = gauges.total("sglang:kv_available_tokens")
    evictable = gauges.total("sglang:kv_evictable_tokens")
    used = gauges.total("sglang:kv_used_tokens")
    assert free + evictable + used == gauges.total("sglang:max_total_num_tokens")


def test_the_policy_reports_its_metrics(replays):
    _, changes = replays["adaptive"]
    prefix = "sglang:adaptive_eviction_"
    evicted = changes.by(f"{prefix}evicted_tokens_total", "reuse_class", tier="device")
    assert sum(evicted.values()) == changes.total("sglang:evicted_tokens_total")
    assert all(re.fullmatch(r"h[0-3]n[0-3]o[0-4]", name) for name in evicted), evicted
    assert changes.total(f"{prefix}seconds_count") > 0
    assert changes.total(f"{prefix}seconds_sum") > 0
    assert changes.total(f"{prefix}index_entries", tier="device") > 0
    assert changes.total(f"{prefix}state_bytes") > 0
    chances = changes.by(f"{prefix}reuse_probability", "reuse_class")
    assert chances and all(0 <= chance <= 1 for chance in chances.values())


def test_other_policies_report_none_of_them(replays):
    _, changes = replays["lru"]
    assert not [name for name in changes.kinds if "adaptive_eviction" in name]
