# SPDX-License-Identifier: Apache-2.0
"""What the policy protects, trims, forgets and learns, on the real tree."""

from __future__ import annotations

import pytest

from support.tree_world import TreeWorld

A = list(range(1, 9))
B = [20, 21, 22, 23]
LEARNED = {"block_tokens": 1}
RECENCY = {
    "mode": "weighted",
    "w_recency": 1.0,
    "w_frequency": 0.0,
    "w_depth": 0.0,
    "trim_tokens": 1,
}


@pytest.mark.parametrize("config", [LEARNED, RECENCY])
def test_partial_match_leaves_the_unused_suffix_old(config):
    world = TreeWorld("adaptive", config, capacity=16)
    world.serve(A, arrival=1)
    world.serve(B, arrival=2)
    assert world.cached([1, 2, 3, 4, 99]) == 4
    assert world.evict(4) == 4
    assert world.cached(B) == 4
    assert world.cached(A) == 4


def test_upstream_lru_refreshes_the_unused_suffix():
    """The fault that the test above is about; when it goes, the edit can go."""
    world = TreeWorld("lru", capacity=16)
    world.serve(A)
    world.serve(B)
    world.cached([1, 2, 3, 4, 99])
    world.evict(4)
    assert world.cached(B) == 0
    assert world.cached(A) == 8


@pytest.mark.parametrize("page_size", [1, 4])
def test_higher_priority_protects_older_pages(page_size):
    world = TreeWorld("adaptive", LEARNED, capacity=32, page_size=page_size)
    world.serve(A, arrival=1, priority=5)
    world.serve(B, arrival=2)
    assert world.evict(4) == 4
    assert (world.cached(A), world.cached(B)) == (8, 0)
    assert world.evict(4) == 4
    assert world.cached(A) == 4


def test_namespaces_share_nothing():
    world = TreeWorld("adaptive", LEARNED, capacity=64)
    spaces = [None, "adapter", "salt:tenant"]
    for arrival, space in enumerate(spaces):
        assert world.serve(A, space, arrival=arrival) == 0
    for arrival, space in enumerate(spaces):
        assert world.serve(A, space, arrival=10 + arrival) == 8
    world.evict(24)
    # A ghost of one namespace is no history of another.
    hits = world.policy.report()["ghost_hit_tokens"]
    world.serve(A, "another", arrival=20)
    assert world.policy.report()["ghost_hit_tokens"] == hits
    world.serve(A, "adapter", arrival=21)
    assert world.policy.report()["ghost_hit_tokens"] == hits + 8


@pytest.mark.parametrize(
    ("policy", "config", "page_size", "left"),
    [
        ("adaptive", LEARNED, 1, 59),
        ("adaptive", LEARNED, 4, 56),
        ("adaptive", {"trim_tokens": 16}, 1, 48),
        ("adaptive", {"trim": False}, 1, 0),
        ("lru", {"trim": True, "trim_tokens": 1}, 1, 59),
        ("lru", {"trim": True, "trim_tokens": 1}, 4, 56),
        ("lru", {"index": True}, 1, 0),
        ("lru", None, 1, 0),
    ],
)
def test_only_the_needed_tail_goes(policy, config, page_size, left):
    world = TreeWorld(policy, config, capacity=64, page_size=page_size)
    world.serve(range(64), arrival=1)
    assert world.evict(5) == 64 - left
    assert world.cached(range(64)) == left
    world.check()


def test_running_requests_are_never_evicted():
    world = TreeWorld("adaptive", LEARNED, capacity=12)
    world.start(A, arrival=1)
    world.start(B, arrival=2)
    assert world.evict(12) == 0
    assert world.start([50, 51], arrival=3) is None
    world.finish()
    assert world.start([50, 51], arrival=4) == 0
    world.check()
    assert world.cached(B) == 4


def test_flush_forgets_pages_and_keeps_what_was_learned():
    world = TreeWorld("adaptive", LEARNED, capacity=32)
    for arrival in range(200):
        world.serve([arrival % 7, 1, 2, 3], arrival=arrival)
    world.start(A, arrival=200)
    stale = world.held[0].touch
    world.finish()
    report = world.policy.report()
    assert report["rebuilds"] > 0
    world.flush()
    world.policy.finish(stale, 10)  # the answer that was under way at the flush
    assert world.cached(A) == 0
    learned = world.policy.report()
    assert learned["rebuilds"] == report["rebuilds"]
    assert learned["reuse_probability"] == report["reuse_probability"]
    assert world.serve(A, arrival=201) == 0
    assert world.serve(A, arrival=202) == 8
    world.check()


def test_what_is_asked_for_again_outlives_what_is_not():
    """Documents come back at a steady pace; newer one-off prompts never do."""

    def hits(policy: str, config: dict | None) -> int:
        world = TreeWorld(policy, config, capacity=160)
        found, fresh = 0, 1000
        for turn in range(400):
            base = 100 * (turn % 10)
            found += world.serve(range(base, base + 8), arrival=4.0 * turn) or 0
            for burst in range(2):
                prompt = range(fresh, fresh + 16)
                fresh += 16
                world.serve(prompt, arrival=4.0 * turn + 1 + burst)
        return found

    lru = hits("lru", None)
    learned = hits("adaptive", {"block_tokens": 4})
    assert lru < 400 * 8 * 0.1  # 10 documents x (8 + 32) tokens do not fit
    assert learned > 400 * 8 * 0.6


def test_weights_order_the_leaves():
    frequency = {"mode": "weighted", "w_recency": 0, "w_frequency": 1, "w_depth": 0}
    world = TreeWorld("adaptive", frequency | {"trim": False}, capacity=64)
    for _ in range(3):
        world.serve(A)
    world.serve(B)
    assert world.evict(1) == 4
    assert world.cached(A) == 8

    depth = {"mode": "weighted", "w_recency": 0, "w_frequency": 0, "w_depth": 1}
    world = TreeWorld("adaptive", depth | {"trim": False}, capacity=64)
    world.serve(B)
    world.serve(A)
    world.serve([30, 31])
    assert world.evict(1) == 8
    assert world.cached(B) == 4


def test_state_is_bounded_and_reported():
    world = TreeWorld("adaptive", {"block_tokens": 1, "ghost_ratio": 2.0}, capacity=64)

    def serve_pools(start: int, pools: int) -> int:
        for number in range(start, start + pools * 8):
            world.serve(range(number * 100, number * 100 + 8), arrival=number)
        return world.policy.state_bytes()

    early, late = serve_pools(0, 10), serve_pools(1000, 100)
    assert 0 < late <= 1.5 * early
    report = world.policy.report()
    assert sum(report["evicted_tokens"].values()) == 110 * 64 - 64
    assert report["state_bytes"] == late
    assert report["index_entries"] > 0
    assert all(0 <= p <= 1 for p in report["reuse_probability"].values())
