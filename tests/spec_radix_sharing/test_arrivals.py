# SPDX-License-Identifier: Apache-2.0
"""An arriving request has the running one that it continues shared at once."""

import pytest

pytest.importorskip("torch")

from sharing_world import Request, World, batch


def running(world, *requests):
    """They have decoded: the sharer has seen a result of each."""
    world.running = list(requests)
    world.sharer.on_result(batch(*requests))
    assert world.shared() == []
    return requests


def arrival(ids, **more):
    req = Request()
    req.origin_input_ids, req.output_ids = list(ids), []
    vars(req).update(more)
    return req


def queued(world, ids, **more):
    world.sharer.on_queued(arrival(ids, **more))
    return world.shared()


def text(req, tokens):
    return req.full_untruncated_fill_ids[:tokens]


def test_what_it_continues_is_shared_whatever_the_interval():
    world, req = World(interval=1000), Request()
    running(world, req.decode(20))
    assert queued(world, [*text(req, 110), 1, 2]) == [120]
    assert world.values() == {"shared_tokens": 20, "insertions": 1, "arrival_insertions": 1}
    reader = arrival([*text(req, 110), 1, 2])
    world.sharer.on_admitted(reader, 110)
    assert world.values()["served_tokens"] == 10


def test_siblings_need_no_second_insertion():
    world, req = World(interval=1000), Request()
    running(world, req.decode(20))
    assert queued(world, [*text(req, 110), 1]) == [120]
    assert queued(world, [*text(req, 115), 2]) == []


def test_the_next_interval_counts_from_there():
    world, req = World(interval=30), Request()
    running(world, req.decode(20))
    queued(world, text(req, 120))
    world.sharer.on_result(batch(req.decode(29)))
    assert world.shared() == []
    world.sharer.on_result(batch(req.decode(1)))
    assert world.shared() == [150]


@pytest.mark.parametrize("tokens", [50, 100])
def test_the_prompt_alone_is_in_the_tree_already(tokens):
    world, req = World(interval=1000), Request()
    running(world, req.decode(20))
    assert queued(world, [*text(req, tokens), 1, 2, 3]) == []


def test_other_texts_share_nothing():
    world, req = World(interval=1000), Request()
    running(world, req.decode(20))
    other = text(req, 115)
    other[40] += 1
    assert queued(world, other) == []


def test_whole_pages_and_bigrams():
    world, req = World(interval=1000, page_size=16, uncached_tail=1), Request(prompt=96)
    running(world, req.decode(40))
    # 16 tokens more need a 17th for the last pair.
    assert queued(world, text(req, 112)) == []
    assert queued(world, text(req, 113)) == [128]


def test_of_twins_the_longer_one():
    world, short, long = World(interval=1000), Request(), Request()
    running(world, short.decode(10), long.decode(15))
    assert queued(world, text(long, 114)) == [115]
    assert long.kv.cache_protected_len == 115 and short.kv.cache_protected_len == 100


def test_in_flight_without_duplicates():
    world, req = World(interval=1000), Request()
    running(world, req.decode(20))
    world.queue = [batch(req)]
    assert queued(world, text(req, 115)) == [120]


def test_in_flight_with_duplicates_waits_for_the_next_natural_point():
    world, req = World(interval=1000), Request()
    running(world, req.decode(20))
    world.queue, world.tree.had = [batch(req)], 104
    assert queued(world, text(req, 115)) == []
    world.queue = []
    world.sharer.on_result(batch(req.decode(1)))
    assert world.shared() == [121]
    assert "arrival_insertions" not in world.values()


@pytest.mark.parametrize(
    "change",
    [
        {"extra_key": "other"},
        {"cache_salt": "other"},
        {"is_retracted": True},
        {"input_embeds": [[0.0]]},
        {"positional_embed_overrides": object()},
    ],
)
def test_arrivals_that_cannot_use_it(change):
    world, req = World(interval=1000), Request()
    running(world, req.decode(20))
    assert queued(world, text(req, 115), **change) == []


@pytest.mark.parametrize(
    "change",
    [
        {"done": True},
        {"is_retracted": True},
        {"to_finish": object()},
        {"skip_radix_cache_insert": True},
        {"input_embeds": [[0.0]]},
    ],
)
def test_running_requests_that_are_not_shared(change):
    world, req = World(interval=1000), Request()
    running(world, req.decode(20))
    vars(req).update(change)
    assert queued(world, text(req, 115)) == []


def test_nothing_of_a_request_without_a_decode_result():
    world, req = World(interval=1000), Request()
    world.running = [req.decode(20)]  # its prefill may be in flight
    assert queued(world, text(req, 115)) == []


def test_nothing_under_new_weights():
    world, req = World(interval=1000), Request()
    running(world, req.decode(20))
    world.sharer.on_weights_changed([req])
    assert queued(world, text(req, 115)) == []


def test_the_threshold_holds_here_too():
    world, req = World(interval=1000, threshold=2.0), Request()
    running(world, req.decode(20, verifications=15))
    assert queued(world, text(req, 115)) == []
    req.decode(20, verifications=1)
    assert queued(world, text(req, 115)) == [140]
