# SPDX-License-Identifier: Apache-2.0
"""A waiting request's prefix counts as used from its arrival, and only once."""

from __future__ import annotations

from array import array

import pytest
from eviction_trees import cached, make_cache, put, serve
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.mem_cache.adaptive_eviction import find_policy, report_admission
from sglang.srt.mem_cache.adaptive_eviction.records import CLASS_MASK
from sglang.srt.mem_cache.adaptive_eviction.touch import PER_HIT
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.runtime_context import get_context, publish
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs

A, B, C = (list(range(start, start + 16)) for start in (0, 100, 200))
SAMPLING = SamplingParams(max_new_tokens=4)


@pytest.fixture(autouse=True, scope="module")
def arguments():
    if not get_context().is_config_namespace_published("schedule"):
        publish(ServerArgs(model_path="dummy"), role="scheduler")


@pytest.fixture
def cache():
    made = make_cache(48, config={"block_tokens": 1, "trim_tokens": 1})
    policy = find_policy(made)
    for arrival, tokens in enumerate((A, B), 1):
        serve(made, policy, tokens, arrival=float(arrival))
    return made


@pytest.fixture
def schedule(cache):
    return SchedulePolicy("fcfs", cache, False, False, False)


def waiting(tokens, arrival):
    req = Req(f"r{arrival}", "", array("q", tokens), SAMPLING)
    req.time_stats.arrival_s = float(arrival)
    return req


@pytest.mark.parametrize("waits", [False, True])
def test_a_prefix_that_a_request_waits_for_outlives_a_newer_one(cache, schedule, waits):
    queue = [waiting([*A, 7, 8], 3)] if waits else []
    schedule.calc_priority(queue)
    serve(cache, find_policy(cache), C, arrival=4.0)
    serve(cache, find_policy(cache), list(range(300, 316)), arrival=5.0)
    kept, gone = (A, B) if waits else (B, A)
    assert cached(cache, gone) < len(gone)
    assert cached(cache, kept) == len(kept)


def test_waiting_and_admission_are_one_use(cache, schedule):
    policy = find_policy(cache)
    req = waiting([*A, 7], 3)
    queue = [waiting([*B, 9], 2), req]
    before = policy._seq
    schedule.calc_priority(queue)
    assert policy._seq == before + 2
    touch = req._reuse_touch
    for _ in range(3):
        schedule.calc_priority(queue)
    report_admission(cache, req)
    assert policy._seq == before + 2
    assert req._reuse_touch is touch
    assert policy.current is None


def hits_of(cache, tokens):
    """Hit levels of a cached prompt's pages, and the numbers of their touches."""
    records = find_policy(cache).records
    nodes, _ = records.path(RadixKey(array("q", tokens), None), None)
    store, levels, touches = records.store, [], []
    for slot in (slot for node in nodes for slot in node.reuse_record.runs):
        levels += [(store.cls[slot] & CLASS_MASK) // PER_HIT] * store.pages[slot]
        touches += [store.seq[slot]] * store.pages[slot]
    return levels[: len(tokens)], touches[: len(tokens)]


def test_what_is_cached_while_a_request_waits_counts_as_its_use(cache, schedule):
    policy = find_policy(cache)
    new = list(range(400, 412))
    queue = [waiting([*new, 500 + n], 3 + n) for n in range(3)]
    schedule.calc_priority(queue)
    first, *others = queue
    report_admission(cache, first)
    policy.current = first._reuse_touch
    put(cache, [*new, 500])
    policy.current = None
    policy.finish(first._reuse_touch, 1)
    for number, req in enumerate(others, 1):
        touch = req._reuse_touch
        assert touch.known == 0
        report_admission(cache, req)
        assert touch.known == len(new)
        levels, touches = hits_of(cache, new)
        assert set(levels) == {number} and set(touches) == {touch.seq}
    report_admission(cache, others[-1])  # its second chunk
    report_admission(cache, others[0])
    assert set(hits_of(cache, new)[0]) == {2}
    cache.sanity_check()


def test_only_new_requests_are_looked_at(cache, schedule):
    policy = find_policy(cache)
    queue = [waiting([*A, n], 3 + n) for n in range(20)]
    schedule.calc_priority(queue)
    seen = policy._seq
    queue.append(waiting([*B, 1], 50))
    schedule.calc_priority(queue)
    assert policy._seq == seen + 1


def test_a_flush_while_it_waits(cache, schedule):
    policy = find_policy(cache)
    queue = [waiting([*A, 7], 3), waiting([*A, 8], 4)]
    schedule.calc_priority(queue)
    cache.reset()
    cache.token_to_kv_pool_allocator.clear()
    schedule.calc_priority(queue)
    assert all(req._reuse_touch.epoch == policy.epoch for req in queue)
    serve(cache, policy, A, arrival=6.0)
    assert cached(cache, A) == len(A)


def test_a_request_given_up_while_waiting_leaves_a_tree_that_serves(cache, schedule):
    policy = find_policy(cache)
    schedule.calc_priority([waiting([*A, 7], 3)])
    for arrival in range(4, 40):
        serve(cache, policy, [arrival * 10 + i for i in range(12)], arrival=float(arrival))
    assert cached(cache, A) < len(A), "nobody came: it is evicted like any other"
    cache.sanity_check()


def test_the_switch_of_upstreams_refresh_turns_it_off(cache, schedule, monkeypatch):
    monkeypatch.setenv("SGLANG_ENABLE_WAITING_PREFIX_REFRESH", "0")
    req = waiting([*A, 7], 3)
    schedule.calc_priority([req])
    assert not hasattr(req, "_reuse_touch")
