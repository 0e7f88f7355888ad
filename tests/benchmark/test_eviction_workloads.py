# SPDX-License-Identifier: Apache-2.0
"""Built-in workloads: reproducible, and each shows the pattern it is named for."""

from __future__ import annotations

from collections import Counter

import pytest

from eviction.trace import BlockIdentity
from eviction.workloads import WORKLOADS, workload

COUNT = 600


def block_uses(trace) -> Counter:
    identity = BlockIdentity()
    return Counter(block for r in trace.requests for block in identity.path(r.blocks))


@pytest.mark.parametrize("name", WORKLOADS)
def test_is_determined_by_name_length_and_seed(name):
    one, same, other = (workload(name, COUNT, seed) for seed in (3, 3, 4))
    assert one.requests == same.requests
    assert one.requests != other.requests
    assert len(one.requests) == COUNT


@pytest.mark.parametrize("name", WORKLOADS)
def test_requests_are_ordered_whole_and_chained(name):
    trace = workload(name, COUNT)
    arrivals = [request.arrival_s for request in trace.requests]
    assert arrivals == sorted(arrivals)
    assert all(request.blocks for request in trace.requests)
    # Ids are chained: equal ids stand under equal prefixes.
    distinct = {block for request in trace.requests for block in request.path}
    assert trace.footprint() == len(distinct)


def test_shared_prefixes_have_popular_and_rare_prompts():
    uses = block_uses(workload("shared-prefixes", COUNT))
    counts = sorted(uses.values(), reverse=True)
    assert counts[0] > COUNT / 10
    assert sum(count == 1 for count in counts) > len(counts) / 3


def test_chat_turns_extend_the_turn_before_them():
    trace = workload("multi-turn-chat", COUNT)
    paths = {r.path for r in trace.requests}
    continued = sum(
        any(r.blocks[:n] in paths for n in range(1, len(r.blocks) + 1)) for r in trace.requests
    )
    assert COUNT / 4 < continued < COUNT


def test_agents_have_long_contexts_that_mostly_repeat():
    trace = workload("agent-fleet", COUNT)
    total = sum(len(r.blocks) for r in trace.requests)
    assert total / COUNT > 20
    assert trace.footprint() < total / 5


def test_scans_are_long_documents_read_once():
    trace = workload("scan-pollution", COUNT)
    uses = block_uses(trace)
    scans = [r for r in trace.requests if r.blocks[0] >= 1 << 40]
    assert COUNT / 10 < len(scans) < COUNT / 3
    identity_uses = Counter(block for r in scans for block in r.blocks)
    assert set(identity_uses.values()) == {1}
    assert max(uses.values()) > 100


def test_a_phase_shift_replaces_the_popular_prompts():
    trace = workload("phase-shift", COUNT)
    thirds = [trace.requests[i * COUNT // 3 : (i + 1) * COUNT // 3] for i in range(3)]
    first_blocks = [{r.blocks[0] for r in third} for third in thirds]
    assert not first_blocks[0] & first_blocks[1]
    assert not first_blocks[1] & first_blocks[2]
    assert all(len(blocks) <= 24 for blocks in first_blocks)


def test_an_unknown_name_is_an_error():
    with pytest.raises(KeyError):
        workload("nothing", 10)
