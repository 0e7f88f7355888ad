# SPDX-License-Identifier: Apache-2.0
"""A request's life as the scheduler reports it: chunks, retraction, abort, flush."""

from __future__ import annotations

import pickle
from array import array
from types import SimpleNamespace

import pytest
from eviction_trees import check, evict, make_cache, match, put, serve
from sglang.srt.mem_cache.adaptive_eviction import find_policy, report_admission
from sglang.srt.mem_cache.adaptive_eviction.records import PROVISIONAL
from sglang.srt.mem_cache.adaptive_eviction.reuse_model import OUTPUT_LEVELS, SIZE_LEVELS
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.observability.req_time_stats import (
    APIServerReqTimeStats,
    DPControllerReqTimeStats,
    SchedulerReqTimeStats,
)


def request(tokens, arrival=None, priority=0):
    """What the policy reads of a scheduler request."""
    return SimpleNamespace(
        full_untruncated_fill_ids=array("q", tokens),
        origin_input_ids=array("q", tokens),
        output_ids=array("q"),
        extra_key=None,
        cache_salt=None,
        priority=priority,
        best_match_node=None,
        time_stats=SimpleNamespace(arrival_s=arrival),
    )


@pytest.fixture
def cache():
    return make_cache(64, config={"block_tokens": 1, "trim_tokens": 1})


def component(cache):
    return cache.components[ComponentType.FULL]


def insert_for(cache, req, tokens, finished=False):
    """What checkpoint_into_tree does around an insert."""
    full = component(cache)
    full.prepare_for_caching_req(req, None, len(tokens), finished)
    result = put(cache, tokens)
    full.cleanup_after_caching_req(req, finished, insert_result=result)
    return result


def class_of(hits, size, output):
    """Class of a page with ``hits`` (at most 3) and two levels."""
    return (hits * SIZE_LEVELS + size) * OUTPUT_LEVELS + output


def leaf_class(cache, tokens):
    node = cache.tree_core.node_by_id(match(cache, tokens).last_device_node)
    return find_policy(cache).records.store.cls[node.reuse_record.runs[-1]]


def test_chunks_of_one_request_are_one_touch(cache):
    policy, req = find_policy(cache), request(range(12), arrival=5.0)
    for end in (4, 8, 12):
        report_admission(cache, req)
        insert_for(cache, req, range(end), finished=end == 12)
    assert policy._seq == 1
    policy.model._collect()
    assert policy.model.reuses.sum() == 0
    assert leaf_class(cache, range(12)) == class_of(0, 2, 0)


def test_an_answer_gets_its_class_though_the_prompt_is_inserted_after_it(cache):
    """As checkpoint_into_tree splits the leaf, so that the answer can go first."""
    policy, req = find_policy(cache), request(range(8), arrival=1.0)
    report_admission(cache, req)
    full = component(cache)
    full.prepare_for_caching_req(req, None, 12, True)
    for end in (12, 8):
        put(cache, range(end))
    req.output_ids.extend(range(70))
    full.cleanup_after_caching_req(req, is_finished=True)
    assert leaf_class(cache, range(12)) == leaf_class(cache, range(8)) == class_of(0, 2, 1)
    check(cache, policy)


def test_the_end_of_a_path_that_was_evicted_is_not_waited_for(cache):
    policy, req = find_policy(cache), request(range(12), arrival=1.0)
    report_admission(cache, req)
    insert_for(cache, req, range(12))
    evict(cache, 12)
    insert_for(cache, req, range(8), finished=True)
    assert leaf_class(cache, range(8)) < PROVISIONAL
    check(cache, policy)


def test_matching_in_the_queue_is_no_use(cache):
    policy = find_policy(cache)
    serve(cache, policy, range(8), arrival=1.0)
    for _ in range(20):
        match(cache, range(8))
    policy.model._collect()
    assert policy.model.reuses.sum() == 0
    serve(cache, policy, range(8), arrival=2.0)
    policy.model._collect()
    assert policy.model.reuses.sum() == 8


def test_retraction_is_not_a_second_use(cache):
    policy, req = find_policy(cache), request(range(8), arrival=1.0)
    report_admission(cache, req)
    insert_for(cache, req, range(8))
    req.output_ids.extend(range(70))
    component(cache).cleanup_after_caching_req(req, is_finished=True)  # retracted
    assert leaf_class(cache, range(8)) == class_of(0, 2, 1)
    report_admission(cache, req)  # runs again
    req.output_ids.extend(range(70))
    insert_for(cache, req, range(8), finished=True)
    policy.model._collect()
    assert policy.model.reuses.sum() == 0 and policy._seq == 1
    assert leaf_class(cache, range(8)) == class_of(0, 2, 2)
    check(cache, policy)


def test_abort_before_anything_was_inserted(cache):
    policy = find_policy(cache)
    serve(cache, policy, range(8), arrival=1.0)
    evict(cache, 8)
    assert policy.records.ghosts.pages == 8
    req = request(range(8), arrival=2.0)
    report_admission(cache, req)
    component(cache).cleanup_after_caching_req(req, is_finished=True)
    check(cache, policy)
    # The pages stay ghosts, and a later request finds what they were.
    assert policy.records.ghosts.pages == 8
    serve(cache, policy, range(8), arrival=3.0)
    assert leaf_class(cache, range(8)) == class_of(2, 0, 0)


def test_a_request_nobody_reported_is_admitted_when_it_is_cached(cache):
    req = request(range(6), arrival=4.0)
    insert_for(cache, req, range(6), finished=True)
    assert find_policy(cache)._seq == 1
    assert find_policy(cache).now == 4.0


def test_clock_takes_the_latest_arrival_and_never_turns_back(cache):
    policy = find_policy(cache)
    for arrival, now in ((None, 0.0), (7.0, 7.0), (3.0, 7.0), (None, 7.0), (9.5, 9.5)):
        serve(cache, policy, [int(now * 10), 1], arrival=arrival)
        assert policy.now == now


def test_age_in_requests_needs_no_arrival_times():
    cache = make_cache(32, config={"age": "requests", "block_tokens": 1})
    policy = find_policy(cache)
    for i in range(5):
        serve(cache, policy, [i, i])
    assert policy.now == 5.0


def test_flush_between_admission_and_end(cache):
    policy, req = find_policy(cache), request(range(8), arrival=1.0)
    report_admission(cache, req)
    insert_for(cache, req, range(8))
    cache.token_to_kv_pool_allocator.clear()
    cache.reset()
    component(cache).cleanup_after_caching_req(req, is_finished=True)
    assert len(policy.records.store) == 0 and policy.records.ghosts.pages == 0
    report_admission(cache, req)
    insert_for(cache, req, range(8), finished=True)
    check(cache, policy)


def test_other_policies_ignore_the_reports():
    cache = make_cache(16, policy="lru")
    assert find_policy(cache) is None
    report_admission(cache, request(range(4)))


def test_every_rank_receives_the_same_arrival_time():
    """Through a pickle, a data-parallel controller, and a re-broadcast by rank 0."""
    sent = APIServerReqTimeStats()
    sent.set_created_time()
    first = pickle.loads(pickle.dumps(sent))
    second = pickle.loads(pickle.dumps(first))
    controller = DPControllerReqTimeStats.new_from_obj(second)
    third = pickle.loads(pickle.dumps(controller))
    ranks = [SchedulerReqTimeStats.new_from_obj(s) for s in (first, second, third)]
    assert sent.arrival_s > 1.6e9
    assert [rank.arrival_s for rank in ranks] == [sent.arrival_s] * 3
    assert SchedulerReqTimeStats().arrival_s is None
