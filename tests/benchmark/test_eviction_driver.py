# SPDX-License-Identifier: Apache-2.0
"""The replay on the real radix cache: exact hit counts, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from eviction import policies
from eviction.driver import Replay, hit_counts, replay, replay_in_turns
from eviction.optimum import optimum
from eviction.readers import read_trace
from eviction.trace import Request, Trace
from eviction.workloads import workload

SHARED_TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
CAPACITIES = (60, 120, 240)
# Hit blocks of golden_trace.jsonl (120 requests, 1,981 prompt blocks, 968 distinct) at
# CAPACITIES. They change only if a policy, the tree or the replay changes what it does.
GOLDEN = {
    "lru": [238, 369, 636],
    "lfu": [334, 446, 709],
    "fifo": [240, 369, 636],
    "mru": [264, 321, 528],
    "filo": [238, 356, 647],
    "priority": [238, 369, 636],
    "slru": [326, 478, 709],
    "tlru": [238, 366, 633],
    "lhd": [334, 446, 684],
    "gdsf": [252, 366, 704],
    "s3fifo": [334, 519, 718],
    "marconi": [224, 489, 699],
}
GOLDEN_OURS = {"lru-trim": [253, 387, 636]}
GOLDEN_OPTIMUM = [562, 814, 992]


def one(name: str) -> policies.Policy:
    return policies.resolve([name], {})[0]


@pytest.fixture(scope="module")
def golden_trace() -> Trace:
    return read_trace(Path(__file__).with_name("golden_trace.jsonl"))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_hits(golden_trace, name):
    assert hit_counts(golden_trace, [one(name)], CAPACITIES) == {name: GOLDEN[name]}


@pytest.mark.parametrize("name", policies.UPSTREAM)
def test_both_tree_cores_give_the_same_hits(golden_trace, name):
    assert hit_counts(golden_trace, [one(f"{name}@python")], CAPACITIES) == {
        f"{name}@python": GOLDEN[name]
    }


def test_policies_that_take_turns_hit_as_alone(golden_trace, monkeypatch):
    names = ["lru", "lru@python", "adaptive", "weighted", "lhd", "s3fifo", "marconi"]
    chosen = [one(name) for name in names]
    monkeypatch.setattr("eviction.driver.TURN_REQUESTS", 7)
    parts = list(replay_in_turns(golden_trace, chosen, 120, parts=3))
    assert len(parts) == 3
    alone = [replay(golden_trace, policy, 120) for policy in chosen]
    assert [outcome.hit_blocks for outcome in parts[-1]] == [
        outcome.hit_blocks for outcome in alone
    ]
    assert all(outcome.requests == len(golden_trace.requests) for outcome in parts[-1])
    assert parts[-1][2].state_bytes


def test_golden_hits_of_trimming_lru(golden_trace):
    (name,) = GOLDEN_OURS
    assert hit_counts(golden_trace, [one(name)], CAPACITIES) == GOLDEN_OURS


@pytest.mark.parametrize("name", ["adaptive", "weighted"])
def test_adaptive_modes_repeat_exactly_and_stay_above_lru(golden_trace, name):
    first, second = (replay(golden_trace, one(name), 120) for _ in range(2))
    assert first.hit_blocks == second.hit_blocks
    assert GOLDEN["lru"][1] <= first.hit_blocks <= GOLDEN_OPTIMUM[1]


def test_the_adaptive_policy_reports_its_state(golden_trace):
    outcome = replay(golden_trace, one("adaptive"), 120)
    assert outcome.state_bytes
    # Trimming: what left the cache is what was asked for, and the report knows it all.
    evicted = sum(outcome.details["evicted_tokens"].values())
    assert evicted == outcome.evicted_blocks > 0


def test_golden_optimum_bounds_every_policy(golden_trace):
    bounds = [optimum(golden_trace, size).hit_blocks for size in CAPACITIES]
    assert bounds == GOLDEN_OPTIMUM
    for name, hits in GOLDEN.items():
        assert all(hit <= bound for hit, bound in zip(hits, bounds, strict=True)), name


def test_lru_by_hand():
    # Pool of 4. 1-2 and 3-4 fill it and 1-2 hits. 5 evicts the older leaf 3-4 as a
    # whole. 3-4 lacks one slot and evicts the now oldest leaf 1-2. 1-2 evicts 5.
    requests = [(1, 2), (3, 4), (1, 2), (5,), (3, 4), (1, 2)]
    trace = Trace("hand", [Request(float(i), p) for i, p in enumerate(requests)], 512)
    tree = Replay(one("lru"), capacity=4, block_tokens=512, page_size=1)
    hits = [tree.serve(request) for request in trace.requests]
    assert hits == [0, 0, 2, 0, 0, 0]
    tree.check()
    assert (tree.outcome.evictions, tree.outcome.evicted_blocks) == (3, 5)


def test_answers_are_stored_but_never_counted_as_hits():
    turns = [Request(0.0, (1, 2), (3, 4), 1024), Request(1.0, (1, 2, 3, 4, 5))]
    tree = Replay(one("lru"), capacity=16, block_tokens=512, page_size=1)
    assert [tree.serve(turn) for turn in turns] == [0, 4]
    # A request that makes a stored answer again returns its own slots.
    assert tree.serve(turns[0]) == 2
    tree.check()
    assert tree.allocator.available_size() == 16 - 5


def test_a_request_longer_than_the_pool_is_rejected():
    tree = Replay(one("lru"), capacity=4, block_tokens=512, page_size=1)
    assert tree.serve(Request(0.0, (1, 2, 3), (4, 5))) == 0
    assert tree.outcome.rejected == 1
    assert tree.outcome.total_blocks == 3
    assert tree.allocator.available_size() == 4


def test_tokens_of_a_partial_block_never_hit():
    tree = Replay(one("lru"), capacity=8, block_tokens=512, page_size=1)
    request = Request(0.0, (1, 2), input_tokens=1100)
    for _ in range(2):
        tree.serve(request)
    assert tree.outcome.token_hit_ratio == pytest.approx(1024 / 2200)
    assert tree.outcome.hit_ratio == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["lru", "slru@python", "s3fifo", "lru-trim", "adaptive"])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("pattern", ["multi-turn-chat", "agent-fleet"])
def test_leaves_no_lock_and_a_sound_tree(name, page_size, pattern):
    trace = workload(pattern, 120)
    capacity = 160
    tree = Replay(one(name), capacity, trace.block_tokens, page_size)
    outcome = tree.run(trace)  # run() ends with check()
    assert outcome.evictions > 0
    assert tree.cache.protected_size() == 0
    bound = optimum(trace, capacity, page_size)
    assert outcome.total_blocks == bound.total_blocks
    assert outcome.rejected == bound.rejected
    assert 0 < outcome.hit_blocks <= bound.hit_blocks


@pytest.mark.parametrize("name", ["adaptive", "weighted", "lru-trim"])
def test_blocks_of_16_tokens_in_pages_of_four(name):
    # As Qwen-Bailian traces are replayed for a server with 64-token pages.
    chat = workload("multi-turn-chat", 80)
    trace = Trace("qwen", chat.requests, block_tokens=16)
    outcome = Replay(one(name), 120, trace.block_tokens, page_size=4).run(trace)
    assert outcome.evictions > 0
    assert 0 < outcome.hit_blocks <= optimum(trace, 120, 4).hit_blocks


def test_check_notices_a_lock_that_was_kept():
    tree = Replay(one("lru@python"), capacity=8, block_tokens=512, page_size=1)
    tree.serve(Request(0.0, (1, 2)))
    tree.check()
    from array import array

    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    match = tree.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", [1, 2]))))
    lock = tree.cache.lock(match.last_device_node)
    with pytest.raises(AssertionError, match="2 tokens are still locked"):
        tree.check()
    tree.cache.unlock(lock)
    tree.check()


def test_check_notices_slots_that_were_lost():
    tree = Replay(one("lru"), capacity=8, block_tokens=512, page_size=1)
    tree.allocator.alloc(3)
    with pytest.raises(AssertionError, match="8 slots, but 5 are free or evictable"):
        tree.check()


def test_pools_refuse_capacities_that_are_no_whole_pages():
    with pytest.raises(ValueError, match="capacity 10 is not a positive multiple of page size 4"):
        Replay(one("lru"), capacity=10, block_tokens=16, page_size=4)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED_TRACES.is_dir(), reason="needs the development traces")
@pytest.mark.parametrize(
    ("name", "capacity", "ratio"),
    [("conversation_dev", 2_000, 0.0528), ("agents_dev", 2_000, 0.8810)],
)
def test_upstream_lru_on_the_development_traces(name, capacity, ratio):
    trace = read_trace(SHARED_TRACES / f"{name}.jsonl")
    assert replay(trace, one("lru"), capacity).hit_ratio == pytest.approx(ratio, abs=5e-5)
