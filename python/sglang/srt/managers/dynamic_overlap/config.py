# SPDX-License-Identifier: Apache-2.0
"""``--dynamic-overlap-config``: what it may hold, and where the feature can work.

Free of torch and of the scheduler: the flag's field imports it while ``ServerArgs``
is being built.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

import msgspec
from sglang.srt.arg_groups.json_flag import Rule, check_keys, object_parser

FLAG = "--enable-dynamic-overlap"
CONFIG_FLAG = "--dynamic-overlap-config"


class DynamicOverlapConfig(msgspec.Struct, frozen=True):
    """Settings of the decision.

    Attributes:
        min_gain: share of the time per useful row that overlapping must save;
            below it results are processed at once, which delivers them earlier.
        hysteresis: how far the saving must fall below ``min_gain`` before a
            state that overlaps stops doing so.
        ema_weight: weight of a new sample in the averages, once there are
            1 / ``ema_weight`` of them; before, all weigh the same.
        min_samples: samples of a kind of step before its averages decide.
        min_dwell_steps: steps of a kind between two changes of its decision.
        probe_interval_steps: steps of a kind after which the state that is not in
            use is tried; 0 never tries it.
        probe_steps: steps that one such trial lasts.
        heuristic_batch_size: until there are samples, overlap batches of at least
            this many rows (decode) or tokens (prefill).
    """

    min_gain: float = 0.02
    hysteresis: float = 0.01
    ema_weight: float = 0.1
    min_samples: int = 8
    min_dwell_steps: int = 64
    probe_interval_steps: int = 1024
    probe_steps: int = 8
    heuristic_batch_size: int = 2


_RULES = {
    "min_gain": Rule((int, float), "a number from 0 to 1", lambda v: 0 <= v <= 1),
    "hysteresis": Rule((int, float), "a number from 0 to 1", lambda v: 0 <= v <= 1),
    "ema_weight": Rule(
        (int, float), "a number above 0 and at most 1", lambda v: 0 < v <= 1
    ),
    "min_samples": Rule(
        (int,), "an integer from 1 to 10000", lambda v: 1 <= v <= 10_000
    ),
    "min_dwell_steps": Rule(
        (int,), "an integer from 0 to 1000000", lambda v: 0 <= v <= 1_000_000
    ),
    "probe_interval_steps": Rule(
        (int,),
        "0 (never) or an integer up to 10000000",
        lambda v: 0 <= v <= 10_000_000,
    ),
    "probe_steps": Rule((int,), "an integer from 1 to 1000", lambda v: 1 <= v <= 1000),
    "heuristic_batch_size": Rule(
        (int,), "an integer from 1 to 1000000", lambda v: 1 <= v <= 1_000_000
    ),
}

parse_json_object = object_parser('{"min_gain": 0.05}')


def parse_config(raw: Optional[Mapping[str, Any]]) -> DynamicOverlapConfig:
    """Check ``raw`` and fill in the defaults; None gives the defaults.

    Raises:
        ValueError: an unknown key, a value of the wrong type or out of range, or
            values that exclude each other. The text names the flag, the key, the
            value and what is allowed.
    """
    raw = {} if raw is None else raw
    check_keys(CONFIG_FLAG, raw, _RULES)
    config = DynamicOverlapConfig(**raw)
    if config.hysteresis > config.min_gain:
        raise ValueError(
            f"{CONFIG_FLAG}: hysteresis={config.hysteresis} is more than "
            f"min_gain={config.min_gain}, so that overlap would be kept where it costs "
            "time; use 0 to min_gain"
        )
    interval = config.probe_interval_steps
    if interval and config.probe_steps * 2 > interval:
        raise ValueError(
            f"{CONFIG_FLAG}: probe_steps={config.probe_steps} is more than half of "
            f"probe_interval_steps={interval}; use up to {interval // 2}, or "
            "probe_interval_steps=0 for no probes"
        )
    return config


def check_dynamic_overlap(cfg: Any) -> None:
    """Start-up check of the flags against the other arguments.

    ``cfg`` is the resolved view of the server arguments.

    Raises:
        ValueError: see ``parse_config``; or a mode in which the scheduler never
            asks whether to overlap. The text says which and why.
    """
    if not cfg.enable_dynamic_overlap:
        if cfg.dynamic_overlap_config is not None:
            raise ValueError(f"{CONFIG_FLAG} has no effect without {FLAG}")
        return
    parse_config(cfg.dynamic_overlap_config)
    for set_, name, why in _refusals(cfg):
        if set_:
            raise ValueError(f"{FLAG} cannot be combined with {name}: {why}")


def _refusals(cfg: Any) -> list[tuple[bool, str, str]]:
    # What switches overlap off comes first, so that the reason is named and not its
    # effect, --disable-overlap-schedule.
    from sglang.srt.environ import envs
    from sglang.srt.hardware_backend.mlx.runtime import use_mlx

    polling = (
        cfg.disaggregation_mode == "prefill"
        and envs.SGLANG_ENABLE_DISAGG_PREFILL_CONTINUOUS_INPUT_POLLING.get()
    )
    return [
        (
            cfg.pp_size > 1,
            f"--pipeline-parallel-size {cfg.pp_size}",
            "the pipeline's loop has its own order of launching and processing",
        ),
        (use_mlx(), "MLX", "its loop evaluates lazily and never asks"),
        (
            cfg.enable_pdmux,
            "--enable-pdmux",
            "its loop runs prefill and decode side by side and never asks",
        ),
        (
            cfg.dllm_algorithm is not None,
            "--dllm-algorithm",
            "diffusion models run without the overlap loop",
        ),
        (
            cfg.enable_pd_role_switch,
            "--enable-pd-role-switch",
            "averages of one role would decide for the other",
        ),
        (
            cfg.elastic_ep_backend is not None,
            f"--elastic-ep-backend {cfg.elastic_ep_backend}",
            "a rank that joins later has not seen the decisions so far",
        ),
        (
            cfg.enable_dp_attention and cfg.enable_dp_attention_local_control_broadcast,
            "--enable-dp-attention-local-control-broadcast",
            "a decision taken once would reach one group of ranks only",
        ),
        (
            cfg.enable_dp_attention and cfg.disaggregation_mode == "prefill",
            "--enable-dp-attention on a prefill instance",
            "a chunk in flight must overlap there, and ranks hold different chunks",
        ),
        (
            polling,
            "SGLANG_ENABLE_DISAGG_PREFILL_CONTINUOUS_INPUT_POLLING",
            "that loop already waits for each result while it takes in requests",
        ),
        (
            cfg.disable_overlap_schedule,
            "--disable-overlap-schedule",
            "there is no overlap to decide about. If you did not set it, another "
            "argument or the model switched overlap off; the log names it",
        ),
    ]
