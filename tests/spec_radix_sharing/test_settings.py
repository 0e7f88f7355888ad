# SPDX-License-Identifier: Apache-2.0
"""Flags: what is refused, and that the message says why and what is allowed."""

from types import SimpleNamespace

import pytest

pytest.importorskip("sglang")

from sglang.srt.mem_cache.spec_radix_sharing.settings import (
    SharingSettings,
    check_server_args,
)


def arguments(**changed):
    values = {
        "enable_spec_radix_sharing": True,
        "spec_radix_sharing_interval": 256,
        "spec_radix_sharing_accept_threshold": 1.0,
        "speculative_algorithm": "NGRAM",
        "disable_radix_cache": False,
        "strip_thinking_cache": False,
        "disaggregation_mode": "null",
        "pp_size": 1,
        "dcp_size": 1,
        "enable_kv_cache_sharding": False,
        "dllm_algorithm": None,
        "enable_pdmux": False,
        "enable_hisparse": False,
        "enable_lmcache": False,
        "enable_flexkv": False,
        "enable_unified_cache_external_linker": False,
    }
    return SimpleNamespace(**{**values, **changed})


def test_defaults_pass():
    check_server_args(arguments())
    check_server_args(arguments(speculative_algorithm=None))
    check_server_args(arguments(enable_spec_radix_sharing=False))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"spec_radix_sharing_interval": 0}, ["--spec-radix-sharing-interval 0", "1 to"]),
        ({"spec_radix_sharing_interval": 1 << 21}, ["2097152", "1 to 1048576"]),
        ({"spec_radix_sharing_accept_threshold": 0.9}, ["-threshold 0.9", "1.0", "1024"]),
        ({"spec_radix_sharing_accept_threshold": float("nan")}, ["nan", "1.0"]),
        ({"spec_radix_sharing_accept_threshold": float("inf")}, ["inf", "1024"]),
        (
            {"spec_radix_sharing_accept_threshold": 1.5, "speculative_algorithm": None},
            ["--speculative-algorithm", "use 1.0"],
        ),
        ({"disable_radix_cache": True}, ["--disable-radix-cache", "no prefix cache"]),
        ({"strip_thinking_cache": True}, ["--strip-thinking-cache", "out of the cache"]),
        ({"disaggregation_mode": "decode"}, ["--disaggregation-mode decode", "backup"]),
        ({"disaggregation_mode": "prefill"}, ["--disaggregation-mode prefill", "nothing"]),
        ({"pp_size": 2}, ["--pp-size 2", "in flight"]),
        ({"dcp_size": 2}, ["--dcp-size 2"]),
        ({"enable_kv_cache_sharding": True}, ["--enable-kv-cache-sharding"]),
        ({"dllm_algorithm": "x"}, ["--dllm-algorithm"]),
        ({"enable_pdmux": True}, ["--enable-pdmux"]),
        ({"enable_hisparse": True}, ["--enable-hisparse"]),
        ({"enable_lmcache": True}, ["--enable-lmcache", "unified tree"]),
        ({"enable_flexkv": True}, ["--enable-flexkv"]),
        (
            {"enable_unified_cache_external_linker": True},
            ["--enable-unified-cache-external-linker"],
        ),
    ],
)
def test_refused(changed, words):
    with pytest.raises(ValueError) as error:
        check_server_args(arguments(**changed))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"spec_radix_sharing_interval": 32},
        {"spec_radix_sharing_accept_threshold": 2.0},
    ],
)
def test_settings_without_the_flag_are_refused(changed):
    with pytest.raises(ValueError, match="no effect without --enable-spec-radix-sharing"):
        check_server_args(arguments(enable_spec_radix_sharing=False, **changed))


def test_what_the_tree_can_key():
    plain = SharingSettings(8, 1.0)
    assert [plain.cacheable(n) for n in (0, 1, 9)] == [0, 1, 9]
    bigrams = SharingSettings(8, 1.0, page_size=4, uncached_tail=1)
    assert [bigrams.cacheable(n) for n in (0, 4, 5, 8, 9)] == [0, 0, 4, 4, 8]
