# SPDX-License-Identifier: Apache-2.0
"""When a request is shared, when the pipeline is drained, what a retraction keeps."""

import pytest

pytest.importorskip("torch")

from sharing_world import Request, World, batch


def result(world, *requests, mode="decode"):
    world.sharer.on_result(batch(*requests, mode=mode))
    return world.shared()


def test_every_interval_of_committed_tokens():
    world, req = World(interval=8), Request()
    assert result(world, req.decode(3)) == []
    assert result(world, req.decode(4)) == []  # 107 committed
    assert result(world, req.decode(4)) == [111]
    assert result(world, req.decode(7)) == []
    assert result(world, req.decode(1)) == [119]
    assert world.values() == {"shared_tokens": 19, "insertions": 2}


def test_only_what_is_known_and_computed():
    # Plain decoding counts the token of the pass in flight as committed.
    world, req = World(interval=8), Request()
    req.decode(8)
    req.kv.kv_committed_len += 1
    assert result(world, req) == [108]


def test_whole_pages_and_bigrams():
    world, req = World(interval=2, page_size=16, uncached_tail=1), Request(prompt=96)
    assert result(world, req.decode(10)) == []
    assert result(world, req.decode(6)) == []  # 112 committed: the last has no bigram
    assert result(world, req.decode(1)) == [112]


def test_a_row_that_stays_as_it_is_may_be_in_flight():
    world, req = World(interval=8), Request()
    world.queue = [batch(req)]
    assert result(world, req.decode(9)) == [109]
    assert not world.sharer.wants_drain(batch(req))


def test_a_row_that_changes_is_not_in_flight():
    world, req, other = World(interval=8), Request(), Request(first=500)
    world.tree.had = 104  # of both texts
    world.queue = [batch(req)]
    assert result(world, req.decode(9), other.decode(9)) == [109]
    assert other.kv.cache_protected_len == 109 and req.kv.cache_protected_len == 100
    world.queue = [batch(Request(), mode="extend")]  # a prefill of others
    assert result(world, req.decode(1)) == [110]
    world.queue = [batch(req)]  # the tree has no more than the request has now
    assert result(world, req.decode(8)) == [118]


def test_duplicates_are_looked_up_once_an_insertion():
    world, req = World(interval=8), Request()
    world.tree.had, looked = 1000, []
    world.tree.tree_core.match_full_device_prefix = lambda key: looked.append(1) or (1000, 0, 0)
    world.queue = [batch(req)]
    for _ in range(20):
        assert result(world, req.decode(1)) == []
    assert len(looked) == 1


def test_drained_only_after_four_intervals():
    world, req = World(interval=8), Request()
    world.tree.had = 1000
    following = batch(req)
    world.queue = [following]
    for tokens in range(1, 45):
        assert result(world, req.decode(1)) == []
        wants = world.sharer.wants_drain(following)
        assert wants == (tokens >= 32), tokens
    world.queue = []  # what the loop does next: the result is processed with none queued
    assert result(world, req.decode(1)) == [145]
    assert not world.sharer.wants_drain(following)
    assert world.values()["drains"] == 13


@pytest.mark.parametrize(
    "case",
    ["nothing queued", "no next batch", "a prefill follows", "ranks must agree"],
)
def test_no_drain(case):
    world, req = World(interval=8, may_drain=case != "ranks must agree"), Request()
    world.tree.had = 1000
    world.queue = [batch(req)]
    result(world, req.decode(40))
    following = batch(req)
    if case == "nothing queued":
        world.queue = []
    elif case == "no next batch":
        following = None
    elif case == "a prefill follows":
        following = batch(Request(), mode="extend")
    assert not world.sharer.wants_drain(following)
    assert "drains" not in world.values()


def test_mixed_batch_may_be_drained_for():
    world, req = World(interval=8), Request()
    world.tree.had = 1000
    world.queue = [batch(req)]
    result(world, req.decode(40))
    assert world.sharer.wants_drain(batch(req, mode="mixed"))


def test_threshold_is_the_mean_accept_length():
    world, req = World(interval=8, threshold=2.0), Request()
    assert result(world, req.decode(9, verifications=6)) == []  # 10 tokens in 6
    assert result(world, req.decode(7, verifications=2)) == []  # asked again after 8 tokens
    assert result(world, req.decode(1, verifications=1)) == [117]  # 18 in 9
    never_ready, slow = World(interval=8, threshold=2.0), Request()
    never_ready.queue = [batch(slow)]
    for _ in range(60):
        result(never_ready, slow.decode(1))
        assert not never_ready.sharer.wants_drain(batch(slow))


def test_plain_decoding_has_accept_length_one():
    world, req = World(interval=8, threshold=1.0), Request()
    assert result(world, req.decode(8, verifications=0)) == [108]


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("skip_radix_cache_insert", True),
        ("beam_group", object()),
        ("input_embeds", [[0.0]]),
        ("positional_embed_overrides", object()),
        ("session", type("Session", (), {"streaming": True})()),
    ],
)
def test_requests_the_tree_may_not_hold(attribute, value):
    world, req = World(interval=8), Request()
    setattr(req, attribute, value)
    assert result(world, req.decode(50)) == []
    world.sharer.keep(req)
    assert world.shared() == []
    world.queue = [batch(req)]
    assert result(world, req.decode(50)) == [] and not world.sharer.wants_drain(batch(req))


def test_session_that_does_not_stream_is_shared():
    world, req = World(interval=8), Request()
    req.session = type("Session", (), {"streaming": False})()
    assert result(world, req.decode(8)) == [108]


@pytest.mark.parametrize("attribute", ["done", "is_retracted", "to_finish", "released"])
def test_requests_that_end_are_left_alone(attribute):
    world, req = World(interval=8), Request()
    if attribute == "released":
        req.kv.holds_kv = False
    else:
        setattr(req, attribute, True)
    assert result(world, req.decode(50)) == []


def test_prefill_results_share_nothing():
    world, req = World(interval=8), Request()
    assert result(world, req.decode(50), mode="extend") == []


def test_retraction_keeps_the_rest_in_pieces():
    world, req = World(interval=8), Request()
    result(world, req.decode(2))
    req.decode(20)
    world.sharer.keep(req)
    assert world.shared() == [108, 116, 122]
    assert world.values()["kept_tokens"] == 22


def test_retraction_of_a_long_output_keeps_few_leaves():
    world, req = World(interval=8), Request()
    result(world, req.decode(2))
    req.decode(4000)
    world.sharer.keep(req)
    ends = world.shared()
    assert len(ends) == 16 and ends[-1] == 4102


def test_nothing_is_kept_of_a_prefill_in_flight():
    world, req = World(interval=8), Request()
    world.sharer.keep(req)
    req.is_retracted = True
    world.sharer.on_admitted(req, 100)
    req.is_retracted = False
    req.decode(30)  # known again, but its KV is being computed anew
    world.sharer.keep(req)
    assert world.shared() == []


def test_saved_tokens_are_those_the_tree_would_not_have_had():
    world, req = World(interval=8), Request()
    result(world, req.decode(10))
    req.decode(5)
    world.sharer.keep(req)
    req.is_retracted = True
    world.sharer.on_admitted(req, 112)  # the end was evicted meanwhile
    assert world.values()["saved_tokens"] == 12
    assert req.radix_sharing is None  # starts anew
    assert len(world.sharer.spans) == 0


def test_duplicates_of_finished_requests_are_not_ours():
    world, req = World(interval=8), Request()
    world.tree.had = 106
    assert result(world, req.decode(10)) == [110]
    reader = Request()
    reader.output_ids = [7] * 40
    world.sharer.on_admitted(reader, 110)
    assert world.values()["served_tokens"] == 4


def test_new_weights_stop_sharing_until_the_request_starts_anew():
    world, req, waiting = World(interval=8), Request(), Request(first=900)
    result(world, req.decode(10))
    world.shared()
    world.sharer.on_weights_changed([req])
    assert result(world, req.decode(50), waiting.decode(10)) == [110]
    assert waiting.kv.cache_protected_len == 110 and req.kv.cache_protected_len == 110
    world.sharer.keep(req)
    assert world.shared() == []
    req.is_retracted = True
    world.sharer.on_admitted(req, 100)
    req.is_retracted = False
    assert result(world, req.decode(8)) == [168]
