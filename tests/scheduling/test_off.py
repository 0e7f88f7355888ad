# SPDX-License-Identifier: Apache-2.0
"""Without the flag the order is upstream's, and the cache reports to nobody."""

from __future__ import annotations

import random
from typing import Any

import pytest
from scheduling_world import World, world
from sglang.srt.managers import schedule_policy

CHECK = SHARE = 32


def upstream_lpm(made: World) -> list[Any]:
    """Upstream's lpm by its definition, on the queue as it stands."""
    queue = list(made.waiting)
    if len(queue) > 128:
        return queue
    truth = {req: made.matched(req) for req in queue}
    leaders: list[tuple[Any, list[int]]] = []
    held: set[Any] = set()
    for req in queue:
        if truth[req][0] > CHECK:
            continue
        tokens = list(req.origin_input_ids)
        space = (req.extra_key, req.cache_salt)
        if len(tokens) >= SHARE and (space, tokens[:SHARE]) in leaders:
            held.add(req)
        else:
            leaders.append((space, tokens[:SHARE]))
    return sorted(queue, key=lambda r: (r in held, 0 if r in held else -truth[r][1]))


@pytest.mark.parametrize("core", ("rust", "python"))
def test_lpm_is_upstreams(core: str) -> None:
    rng = random.Random(5)
    with world(None, core=core, capacity=2048) as made:
        assert made.policy.prefix_order is None
        assert made.cache.prefix_watch is None
        stems = [[rng.randrange(5) for _ in range(120)] for _ in range(6)]
        for _ in range(60):
            for _ in range(rng.randint(0, 5)):
                stem = rng.choice(stems)
                tail = [rng.randrange(5) for _ in range(20)]
                made.add(
                    stem[: rng.randint(1, 120)] + tail,
                    extra_key=rng.choice([None, "a"]),
                )
            for req in made.waiting[: rng.randint(0, 4)]:
                made.serve(req)
            if rng.random() < 0.2:
                made.evict(rng.randint(1, 500))
            expected = upstream_lpm(made)
            assert made.call() == expected


def test_lpm_turns_into_fcfs_above_128() -> None:
    """The fact that the flag mends, and what it changes."""
    for config, sorts in ((None, False), ({}, True)):
        with world(config) as made:
            made.insert(range(100))
            cold = [made.add([5000 + 50 * n + i for i in range(40)]) for n in range(128)]
            hot = made.add([*range(100), 1])
            assert (made.call()[0] is hot) is sorts
            made.serve(cold[0])
            assert len(made.waiting) == 128
            assert made.call()[0] is hot, "128 are within upstream's limit"


@pytest.mark.parametrize("policy", ("fcfs", "lof", "dfs-weight", "hrrn", "shortest-prefill-first"))
def test_other_policies_have_no_order(policy: str) -> None:
    with world(None, policy=policy) as made:
        assert made.policy.prefix_order is None and made.cache.prefix_watch is None
        made.add([1, 2, 3])
        made.add([4, 5, 6])
        assert len(made.call()) == 2


def test_not_incremental_keeps_the_limit() -> None:
    """Above 128 the order is by arrival; up to there it is by prefix, matched anew."""
    config = {"incremental": False, "aging": "passes", "aging_limit": 1000}
    with world(config, capacity=1 << 15) as made:
        made.insert(range(100))
        cold = [made.add([5000 + 50 * n + i for i in range(40)]) for n in range(140)]
        hot = made.add([*range(100), 1])
        assert made.call() == [*cold, hot]
        for req in cold[:13]:
            made.serve(req)
        assert made.call() == [hot, *cold[13:]]
        before = made.policy.prefix_order.num_matches
        made.call()
        assert made.policy.prefix_order.num_matches == before + len(made.waiting)


def test_the_load_snapshot_knows_the_matches() -> None:
    """Upstream reports matched tokens of waiting requests; so do we, at any length."""
    with world({}) as made:
        for n in range(200):
            made.add([n, 1, 2])
        assert made.policy.waiting_queue_prefix_matched(made.waiting)
    with world(None) as made:
        for n in range(200):
            made.add([n, 1, 2])
        assert not made.policy.waiting_queue_prefix_matched(made.waiting)


def test_a_tree_that_cannot_be_observed_is_refused() -> None:
    """Start-up fails and names the tree, as upstream does for its own features."""
    from scheduling_world import publish_arguments
    from sglang.srt.mem_cache.radix_cache import RadixCache
    from sglang.srt.runtime_context import get_schedule

    publish_arguments()
    tree = RadixCache.create_simulated()
    with get_schedule().override(schedule_policy="lpm", schedule_policy_config={}):
        with pytest.raises(ValueError, match="UnifiedRadixCache.*RadixCache"):
            schedule_policy.SchedulePolicy("lpm", tree, False, False, False)
