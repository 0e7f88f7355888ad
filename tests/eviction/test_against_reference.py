# SPDX-License-Identifier: Apache-2.0
"""The learned mode picks the victims of a per-page reference, request by request."""

from __future__ import annotations

import random

import numpy as np
import pytest
from eviction_reference import BINS, CLASSES, EDGES, ReferencePolicy
from eviction_trees import check, make_cache, serve
from sglang.srt.mem_cache.adaptive_eviction import find_policy
from sglang.srt.mem_cache.adaptive_eviction.reuse_model import IndexRows, best_ratios


def conversations(seed: int, requests: int):
    """Sessions that grow turn by turn and share two system prompts, and one-shots."""
    rng = random.Random(seed)
    fresh = iter(range(100, 10_000_000))
    sessions, arrival = [], 0.0
    for _ in range(requests):
        arrival += rng.choice([0.0, 0.3, 2.0, 20.0])
        kind = rng.random()
        if sessions and kind < 0.55:
            path = rng.choice(sessions[-12:])
            path.extend(next(fresh) for _ in range(rng.randint(1, 5)))
        elif kind < 0.75:
            path = [*list(range(rng.choice([3, 6]))), next(fresh)]
            sessions.append(path)
        elif kind < 0.9 or not sessions:
            path = [next(fresh) for _ in range(rng.randint(1, 30))]
        else:
            old = rng.choice(sessions)
            path = old[: rng.randint(1, len(old))]
        yield list(path[:40]), arrival, rng.choice([5, 70, 200, 400, 900])


@pytest.mark.parametrize("seed", [1, 2])
def test_same_hits_victims_and_statistics(seed):
    capacity = 96
    cache = make_cache(capacity, config={"block_tokens": 1})
    policy, reference = find_policy(cache), ReferencePolicy(capacity)
    evicted = 0
    for path, arrival, output in conversations(seed, 250):
        hits, victims = reference.request(tuple(path), arrival, output)
        served = serve(cache, policy, path, arrival, output)
        assert served.hit == hits
        assert served.victims == set(victims)
        evicted += len(victims)
    check(cache, policy)
    assert evicted > 500 and policy.model.rebuilds > 10
    policy.model._collect()
    np.testing.assert_allclose(policy.model.exposures, reference.R, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(policy.model.reuses, reference.H, rtol=1e-9, atol=1e-9)
    assert policy.records.ghosts.pages == len(reference.ghosts)


def test_pages_of_four_tokens_behave_like_blocks():
    """The same requests in pages of four: every token count is four times as large."""
    small = make_cache(64, config={"block_tokens": 1})
    large = make_cache(256, config={"block_tokens": 4, "trim_tokens": 1}, page_size=4)
    for path, arrival, output in conversations(4, 150):
        one = serve(small, find_policy(small), path, arrival, output)
        paged = [4 * token + i for token in path for i in range(4)]
        four = serve(large, find_policy(large), paged, arrival, output)
        assert four.hit == 4 * one.hit
        assert len(four.victims) == len(one.victims)
    check(large, find_policy(large))


def test_index_is_the_best_ratio_over_all_stopping_ages():
    rng = np.random.default_rng(0)
    hazard = rng.uniform(0, 0.999, (CLASSES, BINS)) ** 3
    got = best_ratios(hazard)
    rows = IndexRows(hazard, np.array([0, 41]))  # others are made when asked for
    assert sorted(rows) == [0, 41]
    for cls in (0, 41, 79):
        for b in (0, 17, 40, BINS - 1):
            best, hit, time, alive = 0.0, 0.0, 0.0, 1.0
            for e in range(b, BINS):
                width, risk = EDGES[e + 1] - EDGES[e], hazard[cls, e]
                if e == b:
                    width, risk = width / 2, risk / 2
                hit += alive * risk
                time += alive * (1 - risk / 2) * width
                alive *= 1 - risk
                best = max(best, hit / time)
            assert got[cls, b] == pytest.approx(best, rel=1e-12)
            assert rows[cls][b] == got[cls, b]


def test_two_trees_with_the_same_operations_pick_the_same_victims():
    """Ranks decide alike: nothing depends on a clock, on ids or on hash seeds."""
    config = {"block_tokens": 1}
    first, second = make_cache(48, config=config), make_cache(48, config=config)
    # Shift the second tree's node ids, as another history of the process would.
    for i in range(7):
        serve(make_cache(8, config=config), None, [i])
    for path, arrival, output in conversations(9, 150):
        one = serve(first, find_policy(first), path, arrival, output)
        two = serve(second, find_policy(second), path, arrival, output)
        assert (one.hit, one.victims) == (two.hit, two.victims)
