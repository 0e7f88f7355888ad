# SPDX-License-Identifier: Apache-2.0
"""What is published of a real tree, of both cores, equals what the tree holds."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from identities import page_digests
from registry_world import CORES, PublishedTree
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

NAMESPACES = [(None, None), ("tenant", None), (None, "pepper"), ("tenant", "pepper")]
# Few tokens and shared beginnings: splits, repeats and equal pages at other depths.
prompts = st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=1, max_size=28)
operations = st.one_of(
    st.tuples(st.just("serve"), prompts, st.sampled_from(NAMESPACES), st.booleans()),
    st.tuples(st.just("release")),
    st.tuples(st.just("evict"), st.integers(1, 40)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("lose")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("deliver")),
)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(("page_size", "eagle"), [(1, False), (4, False), (4, True)])
@settings(max_examples=60, deadline=None)
@given(history=st.lists(operations, min_size=1, max_size=40))
def test_registry_equals_the_tree_after_any_history(core, page_size, eagle, history):
    world = PublishedTree(core, page_size=page_size, eagle=eagle)
    for name, *arguments in history:
        if name == "serve":
            tokens, (extra_key, salt), hold = arguments
            world.serve(tokens, extra_key, salt, hold=hold)
        elif name == "release":
            world.release()
        elif name == "evict":
            world.evict(arguments[0])
        elif name == "flush":
            world.flush()
        elif name == "lose":
            world.publish()  # what is published now reaches nobody
        elif name == "restart":
            # As after a weight update that keeps the cache: another epoch, same pages.
            world.deliver()
            world.history.new_epoch()
        else:
            world.deliver()
    world.deliver()
    world.stream.receive(world.history.heartbeat())
    if world.stream.state != "live":
        world.answer()
    world.check()
    world.flush()
    world.deliver()
    world.check()
    assert world.stream.registry.num_blocks == 0


@pytest.mark.parametrize("core", CORES)
def test_equal_pages_at_other_depths_have_digests_of_their_own(core):
    world = PublishedTree(core)
    world.serve([7] * 32)
    world.deliver()
    assert world.stream.registry.num_blocks == 8  # upstream issue 13488
    assert world.stream.estimate([7] * 40) == 32


@pytest.mark.parametrize("core", CORES)
def test_namespaces_share_no_blocks(core):
    world = PublishedTree(core)
    for extra_key, salt in NAMESPACES:
        world.serve(range(8), extra_key, salt)
    world.deliver()
    assert world.stream.registry.num_blocks == 8
    assert world.stream.estimate(range(8), extra_key="stranger") == 0
    assert world.stream.estimate(range(8), cache_salt="salt") == 0  # upstream issue 24568


@pytest.mark.parametrize("core", CORES)
def test_published_digests_are_the_documented_hash(core):
    world = PublishedTree(core)
    world.serve(range(12), "tenant", "pepper")
    world.deliver()
    assert list(world.stream.registry.dump()) == page_digests(
        range(12), 4, "tenant", "pepper", False
    )


@pytest.mark.parametrize("core", CORES)
def test_upstreams_events_are_the_same_beside_the_registry(core):
    def history(world):
        world.serve(range(12))
        world.serve([*range(4), 9, 9, 9, 9], "tenant", "pepper")
        world.evict(8)
        world.flush()
        world.serve(range(4))
        world.deliver()
        return world.upstream_events

    alone = PublishedTree(core, exclusive=False)
    alone.tree.tree_core.kv_events.registry_tap = None
    beside = PublishedTree(core, exclusive=False)
    events = history(beside)
    assert len(events) > 4
    assert events == history(alone)
    beside.check()


@pytest.mark.parametrize("core", CORES)
def test_alone_no_upstream_event_is_made(core):
    world = PublishedTree(core, exclusive=True)
    world.serve(range(12))
    world.deliver()
    world.evict(4)
    world.flush()
    world.deliver()
    assert world.upstream_events == [] or all(
        type(event).__name__ == "AllBlocksCleared" for event in world.upstream_events
    )


def test_stores_under_an_untold_parent_count_as_lost_and_are_never_claimed():
    world = PublishedTree("rust")
    world.serve(range(8))
    world.tree.take_events()
    world.tap.drain()  # the store is lost before it is translated
    world.serve(range(16))
    world.deliver()
    assert world.translator.lost_blocks == 2
    assert world.stream.estimate(range(16)) == 0
    world.evict(16)
    world.deliver()
    world.serve(range(16))
    world.deliver()
    assert world.stream.estimate(range(16)) == 16


@pytest.mark.parametrize("core", CORES)
@settings(max_examples=40, deadline=None)
@given(history=st.lists(operations, min_size=1, max_size=40))
def test_prefixes_are_those_of_dynamos_tree_fed_with_upstreams_events(core, history):
    dynamo = pytest.importorskip("dynamo.llm", reason="see requirements/anchors.txt")
    world = PublishedTree(core, exclusive=False)
    for name, *arguments in history:
        if name == "serve":
            # Its hashes know no namespaces.
            world.serve(arguments[0], hold=arguments[2])
        elif name == "evict":
            world.evict(arguments[0])
        elif name == "release":
            world.release()
        world.deliver()
    oracle = dynamo.RadixTree()
    for number, event in enumerate(world.upstream_events):
        kind = type(event).__name__
        if kind == "BlockStored":
            local = dynamo.compute_block_hash_for_seq(list(event.token_ids), event.block_size)
            data = {
                "stored": {
                    "parent_hash": unsigned(event.parent_block_hash),
                    "blocks": [
                        {"block_hash": unsigned(block), "tokens_hash": tokens}
                        for block, tokens in zip(event.block_hashes, local, strict=True)
                    ],
                }
            }
        elif kind == "BlockRemoved":
            data = {"removed": {"block_hashes": [unsigned(h) for h in event.block_hashes]}}
        else:
            continue
        body = {"event_id": number, "data": data, "dp_rank": 0}
        oracle.apply_event(0, json.dumps(body).encode())
    for tokens, _, _ in world.seen:
        local = dynamo.compute_block_hash_for_seq(list(tokens), world.page_size)
        found = max(oracle.find_matches(local).scores.values(), default=0)
        assert world.stream.estimate(list(tokens)) == found * world.page_size


def unsigned(number):
    return None if number is None else number % 2**64


def test_a_page_on_the_host_tier_counts_until_both_tiers_dropped_it():
    """Backups without transfers: host values are set as a finished backup sets them."""
    world = PublishedTree("python")
    core = world.tree.tree_core
    core.set_hicache_enabled()
    world.serve(range(16))
    nodes = [node for node in core._node_arena.values() if node is not core.root_node]
    for node in nodes:
        core.mark_write_through_pending([node.id], node.id)
        core.commit_backup(node.id, torch.arange(len(node.key), dtype=torch.int64), {})
        core.finish_write_through([node.id], node.id)
    world.deliver()
    pages = b"".join(page_digests(range(16), 4, None, None, False))
    references = world.stream.registry.references
    assert references(pages) == [2, 2, 2, 2]
    world.tree._evict_components({ComponentType.FULL: 16}, {ComponentType.FULL: 0})
    world.deliver()
    assert world.resident(range(16)) == 0, "none is left on the device"
    assert references(pages) == [1, 1, 1, 1]
    assert world.stream.estimate(range(16)) == 16
    world.tree.evict_host(100)
    world.deliver()
    assert references(pages) == [0, 0, 0, 0]
    assert world.stream.registry.num_blocks == world.history.num_blocks == 0
