# SPDX-License-Identifier: Apache-2.0
"""Flags that cannot work end the start with a text that names them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from sglang.srt.mem_cache.cache_warming.settings import (
    WarmingSettings,
    budget_tokens,
    check_cache_warming,
    chunk_tokens,
)


@pytest.fixture
def arguments(tmp_path):
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps({"prompts": [{"text": "a"}]}))

    def make(**changed):
        values = {
            "cache_warming_prompts": str(path),
            "cache_warming_mode": "kv",
            "cache_warming_chunk_size": None,
            "cache_warming_budget_tokens": None,
            "disable_radix_cache": False,
            "disaggregation_mode": "null",
            "dllm_algorithm": None,
            "enable_pdmux": False,
            "enable_dp_attention": False,
            "schedule_policy": "fcfs",
        }
        return SimpleNamespace(**{**values, **changed})

    return make


def test_good_arguments_pass(arguments):
    check_cache_warming(arguments())
    check_cache_warming(arguments(disaggregation_mode="prefill"))
    check_cache_warming(arguments(cache_warming_mode="tree", schedule_policy="lpm"))
    # fcfs with priorities, ordered by prefix within each.
    check_cache_warming(arguments(cache_warming_mode="tree", schedule_policy_config={}))
    # Hints compute nothing, so nothing makes a control request wait in one group only.
    check_cache_warming(
        arguments(cache_warming_mode="tree", schedule_policy="lpm", enable_dp_attention=True)
    )
    check_cache_warming(arguments(cache_warming_prompts=None))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"cache_warming_prompts": None, "cache_warming_chunk_size": 8},
            "--cache-warming-chunk-size 8 has no effect without --cache-warming-prompts",
        ),
        ({"cache_warming_mode": "kvs"}, "'kvs' is not known; use kv or tree"),
        ({"cache_warming_chunk_size": 0}, "chunk-size 0 is not allowed; .* at least 1"),
        ({"cache_warming_budget_tokens": -4}, "budget-tokens -4 is not allowed"),
        ({"disable_radix_cache": True}, "cannot be combined with --disable-radix-cache"),
        ({"disaggregation_mode": "decode"}, "a decode instance prefills nothing"),
        ({"enable_dp_attention": True}, "--enable-dp-attention in --cache-warming-mode kv"),
        ({"cache_warming_mode": "tree"}, "lpm or dfs-weight reads it; got fcfs"),
        (
            {
                "cache_warming_mode": "tree",
                "schedule_policy": "lpm",
                "cache_warming_budget_tokens": 9,
            },
            "budget-tokens 9 has no effect with --cache-warming-mode tree",
        ),
        ({"cache_warming_prompts": "nowhere.json"}, "nowhere.json cannot be read"),
    ],
)
def test_bad_arguments_are_named(arguments, changed, expected):
    with pytest.raises(ValueError, match=expected):
        check_cache_warming(arguments(**changed))


@pytest.mark.parametrize(
    ("wanted", "prefill", "page", "chunk"),
    [
        (None, None, 1, 512),
        (None, 128, 1, 128),
        (100, 8192, 16, 96),
        (5, 8192, 16, 16),
        (64, -1, 1, 64),
    ],
)
def test_a_chunk_is_one_batch_of_whole_pages(wanted, prefill, page, chunk):
    assert chunk_tokens(wanted, prefill, page) == chunk


def test_the_budget_is_within_the_pool():
    assert budget_tokens(None, 1000) == 250
    assert budget_tokens(1000, 1000) == 1000
    with pytest.raises(ValueError, match=r"1001 is more than .* use 1 to 1000"):
        budget_tokens(1001, 1000)


def test_cacheable_tokens():
    settings = WarmingSettings("p", "kv", 64, 99, page_size=16, uncached_tail=1)
    assert [settings.cacheable(n) for n in (0, 16, 17, 32, 33)] == [0, 0, 16, 16, 32]
