# SPDX-License-Identifier: Apache-2.0
"""Which cached tokens count as served by early sharing."""

import gc

import pytest

pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.mem_cache.spec_radix_sharing.spans import Sharing, common_prefix
from sharing_world import Request, World, batch


@given(
    shared=st.lists(st.integers(0, 3), max_size=30),
    a=st.lists(st.integers(0, 3), max_size=10),
    b=st.lists(st.integers(0, 3), max_size=10),
)
def test_common_prefix(shared, a, b):
    first, second = shared + a, shared + b
    true = 0
    for x, y in zip(first, second, strict=False):
        if x != y:
            break
        true += 1
    high = min(len(first), len(second))
    assert common_prefix(first, second, 0, high) == true
    assert common_prefix(first, second, len(shared), high) == true


def test_span_begins_with_what_was_new():
    span = Sharing(0)
    span.add(50, 0)
    assert span.covered(50) == 0
    span.add(60, 4)
    span.add(70, 10)
    assert [span.covered(n) for n in (10, 56, 57, 70, 99)] == [0, 0, 1, 14, 14]


def sharing(world, **more):
    req = Request(**more)
    world.sharer.on_result(batch(req.decode(20)))
    return req


def reader(text, **fields):
    req = Request(prompt=0)
    req.output_ids = list(text)
    for name, value in fields.items():
        setattr(req, name, value)
    return req


def test_served():
    world = World(interval=8)
    owner = sharing(world)
    text = owner.full_untruncated_fill_ids
    spans = world.sharer.spans
    assert spans.served(reader(text), 120) == 20
    assert spans.served(reader(text), 107) == 7
    assert spans.served(reader(text), 100) == 0
    assert spans.served(reader([*text[:110], 99, 99]), 120) == 10
    assert spans.served(reader([99, *text[1:]]), 120) == 0  # another prompt
    assert spans.served(reader(text, extra_key="tenant"), 120) == 0
    assert spans.served(reader(text, cache_salt="salt"), 120) == 0
    assert spans.served(owner, 120) == 0  # not by itself


def test_finished_owner_no_longer_serves():
    world = World(interval=8)
    owner = sharing(world)
    text = owner.full_untruncated_fill_ids
    owner.done = True
    assert world.sharer.spans.served(reader(text), 120) == 0
    assert len(world.sharer.spans) == 0


def test_owner_that_is_gone_is_forgotten():
    world = World(interval=8)
    owner = sharing(world)
    assert len(world.sharer.spans) == 1
    world.tree.ends = []
    del owner
    gc.collect()
    assert len(world.sharer.spans) == 0  # without anyone asking
