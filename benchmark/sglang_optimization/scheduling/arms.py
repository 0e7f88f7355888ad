# SPDX-License-Identifier: Apache-2.0
"""The ways to schedule that ``--policies`` accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from common.cli import BenchError

BASELINE = "fcfs"
UNLIMITED = "lpm-unlimited"


@dataclass(frozen=True)
class Arm:
    """One row of the benchmark.

    Attributes:
        name: what the user writes.
        policy: value of ``--schedule-policy``.
        config: value of ``--schedule-policy-config``, or None.
        unlimited: lift upstream's limit of 128 matched requests; a bound to
            compare with, too slow to serve.
    """

    name: str
    policy: str
    config: dict[str, Any] | None = None
    unlimited: bool = False


_ARMS = (
    Arm("fcfs", "fcfs"),
    Arm("lpm", "lpm"),
    Arm(UNLIMITED, "lpm", unlimited=True),
    Arm("lpm-incremental", "lpm", {}),
    Arm("lpm-aging", "lpm", {"aging": "tokens"}),
    Arm("lpm-aging-passes", "lpm", {"aging": "passes", "aging_limit": 200}),
    Arm("dfs-weight", "dfs-weight"),
    Arm("hrrn", "hrrn"),
    Arm("shortest-prefill-first", "shortest-prefill-first"),
    Arm("lof", "lof"),
    Arm("random", "random"),
)
ARMS = {arm.name: arm for arm in _ARMS}
# Those that match the whole queue at every call, at any length.
WHOLE_QUEUE = (UNLIMITED, "dfs-weight", "shortest-prefill-first")


def resolve(names: list[str], config: dict[str, Any] | None) -> list[Arm]:
    """Arms for the words of ``--policies``.

    Args:
        names: arm names, ``all``, or ``custom`` for lpm with ``config``.
        config: value of ``--config``.

    Raises:
        BenchError: an unknown name, or ``custom`` and ``--config`` apart.
    """
    chosen: dict[str, Arm] = {}
    for name in names:
        if name == "all":
            chosen.update(ARMS)
        elif name == "custom":
            if config is None:
                raise BenchError("policy 'custom' needs --config, a JSON object")
            chosen[name] = Arm(name, "lpm", config)
        elif name in ARMS:
            chosen[name] = ARMS[name]
        else:
            raise BenchError(
                f"unknown policy {name!r}; known: {', '.join(ARMS)}, all, "
                "and custom (lpm with the settings of --config)"
            )
    if config is not None and "custom" not in chosen:
        raise BenchError("--config has no effect without 'custom' in --policies")
    return list(chosen.values())
