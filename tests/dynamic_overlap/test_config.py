# SPDX-License-Identifier: Apache-2.0
"""Flags: what is accepted, and where the feature refuses to start."""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import pytest

config = pytest.importorskip(
    "sglang.srt.managers.dynamic_overlap.config",
    reason="topic dynamic-overlap is not in this build",
)


def arguments(**changed):
    """Server arguments with which the feature works."""
    values = {
        "enable_dynamic_overlap": True,
        "dynamic_overlap_config": None,
        "pp_size": 1,
        "enable_pdmux": False,
        "dllm_algorithm": None,
        "enable_pd_role_switch": False,
        "elastic_ep_backend": None,
        "enable_dp_attention": False,
        "enable_dp_attention_local_control_broadcast": False,
        "disaggregation_mode": "null",
        "disable_overlap_schedule": False,
    }
    assert set(changed) <= set(values)
    return SimpleNamespace(**(values | changed))


@pytest.mark.parametrize("mode", ["null", "prefill", "decode"])
def test_starts_where_a_loop_asks(mode):
    config.check_dynamic_overlap(arguments(disaggregation_mode=mode))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        # A pipeline switches overlap off; the pipeline is what must be named.
        ({"pp_size": 2, "disable_overlap_schedule": True}, "--pipeline-parallel-size 2"),
        ({"enable_pdmux": True}, "--enable-pdmux"),
        ({"dllm_algorithm": "LowConfidence"}, "--dllm-algorithm"),
        ({"enable_pd_role_switch": True}, "--enable-pd-role-switch"),
        ({"elastic_ep_backend": "mooncake"}, "--elastic-ep-backend mooncake"),
        ({"disable_overlap_schedule": True}, "--disable-overlap-schedule"),
        (
            {
                "enable_dp_attention": True,
                "enable_dp_attention_local_control_broadcast": True,
            },
            "--enable-dp-attention-local-control-broadcast",
        ),
    ],
)
def test_refuses_with_the_reason(changed, named):
    with pytest.raises(ValueError) as refused:
        config.check_dynamic_overlap(arguments(**changed))
    text = str(refused.value)
    assert text.startswith(f"--enable-dynamic-overlap cannot be combined with {named}: ")
    assert len(text) > len(named) + 60


def test_refuses_where_ranks_could_not_decide_alike():
    with pytest.raises(ValueError, match="ranks hold different chunks"):
        config.check_dynamic_overlap(
            arguments(enable_dp_attention=True, disaggregation_mode="prefill")
        )
    config.check_dynamic_overlap(arguments(enable_dp_attention=True, disaggregation_mode="decode"))


def test_refuses_the_polling_prefill_loop(monkeypatch):
    name = "SGLANG_ENABLE_DISAGG_PREFILL_CONTINUOUS_INPUT_POLLING"
    monkeypatch.setenv(name, "1")
    config.check_dynamic_overlap(arguments())
    with pytest.raises(ValueError, match=name):
        config.check_dynamic_overlap(arguments(disaggregation_mode="prefill"))


def test_refuses_mlx(monkeypatch):
    monkeypatch.setattr("sglang.srt.hardware_backend.mlx.runtime.use_mlx", lambda: True)
    with pytest.raises(ValueError, match="MLX"):
        config.check_dynamic_overlap(arguments())


def test_settings_without_the_feature_are_an_error():
    off = {"enable_dynamic_overlap": False}
    config.check_dynamic_overlap(arguments(**off))
    with pytest.raises(ValueError, match="no effect without --enable-dynamic-overlap"):
        config.check_dynamic_overlap(arguments(**off, dynamic_overlap_config={}))


@pytest.mark.parametrize(
    "raw",
    [
        {"min_gain": -0.1},
        {"min_gain": 1.5},
        {"min_gain": float("nan")},
        {"min_gain": "0.1"},
        {"min_gain": True},
        {"hysteresis": 2},
        {"ema_weight": 0},
        {"ema_weight": 1.01},
        {"min_samples": 0},
        {"min_samples": 8.5},
        {"min_dwell_steps": -1},
        {"probe_interval_steps": -5},
        {"probe_steps": 0},
        {"heuristic_batch_size": 0},
        {"heuristic_batch_size": None},
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(raw):
    (key, value) = next(iter(raw.items()))
    with pytest.raises(ValueError) as refused:
        config.check_dynamic_overlap(arguments(dynamic_overlap_config=raw))
    text = str(refused.value)
    assert f"--dynamic-overlap-config: {key}={value!r} is not allowed; use " in text


def test_an_unknown_key_is_named_with_the_known_ones():
    with pytest.raises(ValueError) as refused:
        config.parse_config({"min_gian": 0.1})
    text = str(refused.value)
    assert "'min_gian'" in text
    for key in config.DynamicOverlapConfig.__struct_fields__:
        assert key in text


def test_values_that_exclude_each_other():
    with pytest.raises(ValueError, match="hysteresis=0.1 is more than min_gain=0.02"):
        config.parse_config({"hysteresis": 0.1})
    with pytest.raises(ValueError, match="use up to 50"):
        config.parse_config({"probe_interval_steps": 100, "probe_steps": 51})
    config.parse_config({"probe_interval_steps": 0, "probe_steps": 51})


def test_every_setting_has_a_rule_and_the_defaults_obey_them():
    defaults = config.DynamicOverlapConfig()
    fields = config.DynamicOverlapConfig.__struct_fields__
    assert config.parse_config({name: getattr(defaults, name) for name in fields}) == defaults


@pytest.mark.parametrize("text", ["{", "[1]", "0.5"])
def test_text_that_is_no_object(text):
    with pytest.raises(argparse.ArgumentTypeError, match="pass an object, e.g."):
        config.parse_json_object(text)
