# SPDX-License-Identifier: Apache-2.0
"""The queue's order by hints, with the real SchedulePolicy and real requests."""

from __future__ import annotations

from array import array

import pytest
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.mem_cache.cache_warming.hints import HintOrder
from sglang.srt.mem_cache.cache_warming.prefix_index import PrefixKey
from sglang.srt.runtime_context import get_context, get_schedule, publish
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs
from warming_world import CORES, World

SAMPLING = SamplingParams(max_new_tokens=4)
both_cores = pytest.mark.parametrize("core", CORES)


@pytest.fixture(autouse=True, scope="module")
def arguments():
    if not get_context().is_config_namespace_published("schedule"):
        publish(ServerArgs(model_path="dummy"), role="scheduler")


def key(*tokens, **namespace):
    return PrefixKey(array("q", tokens), **namespace)


def request(name, tokens, **fields):
    return Req(name, "", array("q", tokens), SAMPLING, **fields)


def order(world, policy, queue, hints):
    schedule = SchedulePolicy(policy, world.cache, False, False, False)
    schedule.warming_hints = hints
    schedule.calc_priority(queue)
    return [req.rid for req in queue]


@pytest.fixture
def queue():
    """Cold, sharing a prefix of 40 that is hinted (h), cached for 50 (c)."""
    return [
        request("cold", range(900, 960)),
        request("h1", [*range(100, 140), 1, 2]),
        request("c", [*range(500, 550), 3]),
        request("h2", [*range(100, 135), 7, 7]),
    ]


@both_cores
def test_lpm_orders_by_the_longer_of_cached_and_hinted(tmp_path, core, queue):
    world = World(tmp_path, [], core=core)
    world.traffic(range(500, 550))
    hints = HintOrder()
    hints.set("p", key(*range(100, 140)))
    assert order(world, "lpm", list(queue), None) == ["c", "cold", "h1", "h2"]
    # h2 waits for h1: they share 32 uncached tokens and more (upstream's rule).
    assert order(world, "lpm", list(queue), hints) == ["c", "h1", "cold", "h2"]
    hints.set("p", None)
    assert order(world, "lpm", list(queue), hints) == ["c", "cold", "h1", "h2"]


@both_cores
def test_dfs_weight_keeps_hinted_families_together(tmp_path, core, queue):
    world = World(tmp_path, [], core=core)
    world.traffic(range(500, 550))
    hints = HintOrder()
    hints.set("p", key(*range(100, 140)))
    hints.set("q", key(*range(900, 910)))
    queue.append(request("none", range(2000, 2030)))
    assert order(world, "dfs-weight", queue, hints) == ["c", "h1", "h2", "cold", "none"]


@both_cores
def test_a_hint_is_never_a_match(tmp_path, core, queue):
    world = World(tmp_path, [], core=core)
    hints = HintOrder()
    hints.set("p", key(*range(100, 140)))
    order(world, "lpm", queue, hints)
    assert {req.rid: req.prefix_len for req in queue} == dict.fromkeys(("cold", "h1", "c", "h2"), 0)
    assert all(req.num_matched_prefix_tokens == 0 for req in queue)
    assert world.cached(range(100, 140)) == 0


def test_hints_respect_the_namespace():
    hints = HintOrder()
    hints.set("p", key(*range(40), extra_key="t"))
    assert hints.hinted_tokens(request("a", range(50))) == 0
    assert hints.hinted_tokens(request("b", range(50), extra_key="t")) == 40
    assert hints.hinted_tokens(request("c", range(40), extra_key="t")) == 39
    assert hints.hinted_tokens(request("d", range(50), extra_key="t", cache_salt="s")) == 0


@both_cores
def test_the_order_of_schedule_policy_config_counts_hints(tmp_path, core, queue):
    """As lpm does: ahead of cold ones, behind longer cached ones."""
    world = World(tmp_path, [], core=core)
    world.traffic(range(500, 550))
    hints = HintOrder()
    with get_schedule().override(schedule_policy="lpm", schedule_policy_config={}):
        schedule = SchedulePolicy("lpm", world.cache, False, False, False)
    schedule.warming_hints = schedule.prefix_order.hints = hints

    def ordered():
        schedule.calc_priority(queue)
        return [req.rid for req in queue]

    assert ordered() == ["c", "cold", "h1", "h2"]
    hints.set("p", key(*range(100, 140)))
    assert ordered() == ["c", "h1", "cold", "h2"]
    queue.append(request("h3", [*range(100, 120), *range(300, 320)]))
    assert ordered() == ["c", "h1", "h3", "cold", "h2"]
    hints.set("p", None)
    assert ordered() == ["c", "cold", "h1", "h3", "h2"]
    assert all(req.prefix_len == 0 for req in queue if req.rid != "c")
