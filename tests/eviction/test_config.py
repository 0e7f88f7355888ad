# SPDX-License-Identifier: Apache-2.0
"""Flags that cannot work are refused with the flag, the value and what is allowed."""

from __future__ import annotations

import pytest
from sglang.srt.mem_cache.adaptive_eviction import seams
from sglang.srt.mem_cache.adaptive_eviction.config import (
    parse_adaptive_config,
    parse_index_config,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

FLAG = "--radix-eviction-policy-config"


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"mode": "fast"}, ["'mode'", "'learned', 'weighted'", "'fast'"]),
        ({"moed": "learned"}, ["'moed'", "Allowed keys: mode, trim"]),
        ({"w_depth": 1}, ["'w_depth'", "mode learned"]),
        ({"mode": "weighted", "age": "time"}, ["'age'", "w_recency"]),
        ({"mode": "weighted", "w_recency": -1}, ["'w_recency'", "0 to 1000", "-1"]),
        ({"mode": "weighted", "w_depth": float("nan")}, ["'w_depth'", "nan"]),
        ({"mode": "weighted", "w_depth": "1"}, ["'w_depth'", "'1'"]),
        (
            {"mode": "weighted", "w_recency": 0, "w_frequency": 0, "w_depth": 0},
            ["at least one of w_recency"],
        ),
        ({"trim": 1}, ["'trim'", "true or false", "1"]),
        ({"trim_tokens": 0}, ["'trim_tokens'", "1 to 1048576"]),
        ({"block_tokens": True}, ["'block_tokens'", "True"]),
        ({"ghost_ratio": 17}, ["'ghost_ratio'", "0 to 16"]),
        ({"age": "wall"}, ["'age'", "'time', 'requests'"]),
        ([1], ["JSON object", "[1]"]),
    ],
)
def test_adaptive_config_errors(config, parts):
    with pytest.raises(ValueError, match=FLAG) as error:
        parse_adaptive_config(config)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("policy", "config", "parts"),
    [
        ("mru", {"trim": True}, ["'trim'", "mru", "lru, lfu"]),
        ("tlru", {"index": True, "threshold": 4}, ["'index'", "tlru"]),
        ("lru", {"index": "yes"}, ["'index'", "true or false"]),
        ("lru", {"index": False, "trim": True}, ["'index'", "true when 'trim'"]),
        ("lru", {"trim": True, "trim_tokens": -4}, ["'trim_tokens'", "-4"]),
    ],
)
def test_index_config_errors(policy, config, parts):
    with pytest.raises(ValueError, match=FLAG) as error:
        seams.check_server_args(policy, config)
    for part in parts:
        assert part in str(error.value)


def test_upstream_configs_pass_untouched():
    for policy, config in [("lru", None), ("slru", {"protected_threshold": 3})]:
        assert parse_index_config(policy, config) is None
        assert not seams.uses_index(policy, config)
    mixed = parse_index_config("slru", {"index": True, "protected_threshold": 3})
    assert mixed is not None and mixed.strategy_config == {"protected_threshold": 3}


def params(policy: str, config=None, components=(ComponentType.FULL,), override=None):
    return CacheInitParams(
        disable=False,
        req_to_token_pool=None,
        token_to_kv_pool_allocator=None,
        page_size=1,
        eviction_policy=policy,
        eviction_policy_config=config,
        tree_components=components,
        component_registry_override=override,
    )


@pytest.mark.parametrize(
    ("policy", "config"),
    [("adaptive", None), ("adaptive", {"mode": "weighted"}), ("lru", {"trim": True})],
)
@pytest.mark.parametrize("state", [ComponentType.SWA, ComponentType.MAMBA])
def test_trees_with_other_state_are_refused(policy, config, state):
    wanted = params(policy, config, (ComponentType.FULL, state))
    with pytest.raises(ValueError, match=f"full-attention models only.*{state.name}"):
        seams.component_registry({}, wanted)


def test_another_override_is_refused():
    wanted = params("adaptive", override={ComponentType.FULL: object})
    with pytest.raises(ValueError, match="brings its own FULL component"):
        seams.component_registry({}, wanted)


def test_other_tree_caches_are_refused():
    with pytest.raises(ValueError, match="requires UnifiedRadixCache, but tree_cache is object"):
        seams.check_tree_cache(object(), "adaptive", None)
    seams.check_tree_cache(object(), "lru", None)


def test_rust_core_is_left_to_upstream_policies():
    assert "adaptive" in (seams.rust_fallback_reason(params("adaptive")) or "")
    assert "'index'" in (seams.rust_fallback_reason(params("lru", {"index": True})) or "")
    assert seams.rust_fallback_reason(params("lru")) is None
