# SPDX-License-Identifier: Apache-2.0
"""``--schedule-policy-config``: what it may hold and how it is checked.

Kept free of torch and of the scheduler: the flag's field imports it while
``ServerArgs`` is being built.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

import msgspec
from sglang.srt.arg_groups.json_flag import Rule, check_keys, object_parser

FLAG = "--schedule-policy-config"
AGING_UNITS = ("off", "passes", "tokens")


class PrefixOrderConfig(msgspec.Struct, frozen=True):
    """Settings of the longest-prefix order.

    Attributes:
        incremental: order by longest prefix at any queue length, from
            remembered matches. False keeps upstream's limit: above 128
            waiting requests the order is by arrival.
        aging: "off", or the unit in which waiting is counted: "passes"
            (calls of the policy) or "tokens" (prefill tokens computed).
        aging_limit: fixed part of a request's waiting limit, in that unit;
            must be given for "passes".
        aging_factor: with "tokens", the limit grows by this factor times the
            wait that fcfs would have given the request; see aging.py.
        matches_per_pass: tree matches at most one policy call runs. The rest
            follow in later calls, requests first in line first.
        touches_per_pass: prefixes that waiting requests rest on whose recency
            one call refreshes, in turn, so that they are not evicted unused.
    """

    incremental: bool = True
    aging: str = "off"
    aging_limit: int = 0
    aging_factor: float = 1.25
    matches_per_pass: int = 256
    touches_per_pass: int = 8


_RULES = {
    "incremental": Rule((bool,), "true or false", lambda v: True),
    "aging": Rule(
        (str,),
        "one of " + ", ".join(repr(unit) for unit in AGING_UNITS),
        lambda v: v in AGING_UNITS,
    ),
    "aging_limit": Rule((int,), "an integer of at least 0", lambda v: v >= 0),
    "aging_factor": Rule(
        (int, float),
        "a finite number of at least 0",
        lambda v: 0 <= v < float("inf"),
    ),
    "matches_per_pass": Rule((int,), "an integer of at least 1", lambda v: v >= 1),
    "touches_per_pass": Rule((int,), "an integer of at least 0", lambda v: v >= 0),
}

parse_json_object = object_parser('{"aging": "tokens"}')


def parse_config(raw: Optional[Mapping[str, Any]]) -> Optional[PrefixOrderConfig]:
    """Check ``raw`` and fill in the defaults; None stays None (feature off).

    Raises:
        ValueError: an unknown key, a value of the wrong type or out of range,
            or a combination that switches nothing on. The text names the flag,
            the key, the value and what is allowed.
    """
    if raw is None:
        return None
    check_keys(FLAG, raw, _RULES)
    config = PrefixOrderConfig(**raw)
    if config.aging == "passes":
        if "aging_factor" in raw:
            raise ValueError(
                f"{FLAG}: aging_factor={raw['aging_factor']!r} needs "
                'aging="tokens"; passes say nothing about what a request costs'
            )
        if "aging_limit" not in raw:
            raise ValueError(
                f'{FLAG}: aging="passes" needs aging_limit, the passes after which '
                "a request goes first"
            )
    if config.aging == "off":
        for key in ("aging_limit", "aging_factor"):
            if key in raw:
                raise ValueError(
                    f"{FLAG}: {key}={raw[key]!r} has no effect while aging is "
                    '"off"; set aging to "passes" or "tokens", or drop it'
                )
        if not config.incremental:
            raise ValueError(
                f'{FLAG}: incremental=false with aging="off" changes nothing; '
                "drop the flag, or switch one of them on"
            )
    return config


def check_schedule_policy_config(cfg: Any) -> None:
    """Start-up check of the flag against the other arguments.

    ``cfg`` is the resolved view of the server arguments.

    Raises:
        ValueError: see ``parse_config``; or the flag is combined with a policy
            or mode that it cannot serve.
    """
    config = parse_config(cfg.schedule_policy_config)
    if config is None:
        return
    if not applies_to(cfg.schedule_policy, cfg.enable_priority_scheduling):
        raise ValueError(
            f"{FLAG} orders by longest prefix and needs --schedule-policy lpm, or "
            "fcfs together with --enable-priority-scheduling (longest prefix within "
            f"each priority); got --schedule-policy {cfg.schedule_policy}"
        )
    if cfg.disaggregation_mode == "decode":
        raise ValueError(
            f"{FLAG} has no effect with --disaggregation-mode decode, which "
            "prefills nothing; drop it there and keep it on the prefill instances"
        )
    if cfg.disable_radix_cache:
        raise ValueError(
            f"{FLAG} needs the prefix cache; drop it or --disable-radix-cache"
        )
    if config.aging == "tokens" and cfg.dllm_algorithm is not None:
        raise ValueError(
            f'{FLAG}: aging="tokens" is not available with --dllm-algorithm, whose '
            'scheduler does not report prefill tokens; use aging="passes"'
        )


def applies_to(schedule_policy: str, enable_priority_scheduling: bool) -> bool:
    """Whether the longest-prefix order can serve this policy.

    Upstream refuses lpm together with priorities, so there fcfs is the base.
    """
    return schedule_policy == "lpm" or (
        schedule_policy == "fcfs" and enable_priority_scheduling
    )
