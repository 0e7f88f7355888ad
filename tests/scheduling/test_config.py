# SPDX-License-Identifier: Apache-2.0
"""--schedule-policy-config: bad input names flag, key, value and what is allowed."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.prefix_order.config import (
    PrefixOrderConfig,
    check_schedule_policy_config,
    parse_config,
    parse_json_object,
)
from sglang.srt.server_args import ServerArgs

FLAG = "--schedule-policy-config"


def resolved(**changes: Any) -> SimpleNamespace:
    """The arguments the check reads, as they are after resolution."""
    base = {
        "schedule_policy": "lpm",
        "schedule_policy_config": {},
        "enable_priority_scheduling": False,
        "disable_radix_cache": False,
        "disaggregation_mode": "null",
        "dllm_algorithm": None,
    }
    return SimpleNamespace(**{**base, **changes})


def test_defaults() -> None:
    assert parse_config(None) is None
    assert parse_config({}) == PrefixOrderConfig()
    config = parse_config({"aging": "tokens", "aging_factor": 2, "matches_per_pass": 9})
    assert config == PrefixOrderConfig(aging="tokens", aging_factor=2, matches_per_pass=9)


@pytest.mark.parametrize(
    ("raw", "texts"),
    (
        ({"ageing": "tokens"}, ("'ageing'", "aging_factor", "matches_per_pass")),
        ({"aging": "seconds"}, ("aging='seconds'", "'off', 'passes', 'tokens'")),
        ({"aging": True}, ("aging=True", "'passes'")),
        ({"incremental": 1}, ("incremental=1", "true or false")),
        ({"aging": "tokens", "aging_limit": -1}, ("aging_limit=-1", "at least 0")),
        ({"aging": "tokens", "aging_limit": True}, ("aging_limit=True", "integer")),
        ({"aging": "tokens", "aging_limit": 1.5}, ("aging_limit=1.5", "integer")),
        (
            {"aging": "tokens", "aging_factor": float("nan")},
            ("aging_factor=nan", "finite"),
        ),
        ({"matches_per_pass": 0}, ("matches_per_pass=0", "at least 1")),
        ({"touches_per_pass": "x"}, ("touches_per_pass='x'", "at least 0")),
        ({"aging_limit": 5}, ("aging_limit=5", "no effect", '"passes"')),
        ({"aging": "passes"}, ('aging="passes"', "aging_limit")),
        (
            {"aging": "passes", "aging_limit": 1, "aging_factor": 2.0},
            ("aging_factor=2.0", 'aging="tokens"'),
        ),
        ({"incremental": False}, ("incremental=false", "changes nothing")),
        ([], ("JSON object", "[]")),
    ),
)
def test_rejected_values(raw: Any, texts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as error:
        parse_config(raw)
    for text in (FLAG, *texts):
        assert text in str(error.value)


@pytest.mark.parametrize(
    ("changes", "text"),
    (
        ({"schedule_policy": "hrrn"}, "--schedule-policy hrrn"),
        ({"schedule_policy": "fcfs"}, "--enable-priority-scheduling"),
        ({"disable_radix_cache": True}, "--disable-radix-cache"),
        ({"disaggregation_mode": "decode"}, "--disaggregation-mode decode"),
        (
            {"schedule_policy_config": {"aging": "tokens"}, "dllm_algorithm": "x"},
            "--dllm-algorithm",
        ),
    ),
)
def test_rejected_combinations(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as error:
        check_schedule_policy_config(resolved(**changes))
    assert FLAG in str(error.value) and text in str(error.value)


def test_accepted_combinations() -> None:
    check_schedule_policy_config(resolved())
    check_schedule_policy_config(resolved(schedule_policy="fcfs", enable_priority_scheduling=True))
    check_schedule_policy_config(resolved(schedule_policy="hrrn", schedule_policy_config=None))
    check_schedule_policy_config(
        resolved(disaggregation_mode="decode", schedule_policy_config=None)
    )


@pytest.mark.parametrize("text", ("{", "[1]", "lpm", "3"))
def test_text_that_is_no_object(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as error:
        parse_json_object(text)
    assert repr(text) in str(error.value) and '{"aging": "tokens"}' in str(error.value)


def test_the_flag_reaches_the_server_arguments(capsys) -> None:
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    words = ["--model-path", "dummy", "--schedule-policy", "lpm"]
    options = parser.parse_args([*words, FLAG, '{"aging": "tokens"}'])
    assert options.schedule_policy_config == {"aging": "tokens"}
    assert parser.parse_args(words).schedule_policy_config is None
    with pytest.raises(SystemExit):
        parser.parse_args([*words, FLAG, "aging=passes"])
    assert FLAG in capsys.readouterr().err


def test_the_check_runs_at_start_up() -> None:
    from sglang.srt.arg_groups.validation_hook import check_server_args

    args = ServerArgs(
        model_path="dummy",
        served_model_name="dummy",
        page_size=1,
        chunked_prefill_size=-1,
        schedule_policy="lpm",
        schedule_policy_config={"aging": "seconds"},
    )
    with pytest.raises(ValueError, match=f"{FLAG}: aging='seconds' is not allowed"):
        check_server_args(args)
