# SPDX-License-Identifier: Apache-2.0
"""Options of ``--radix-eviction-policy-config``: keys, ranges and their errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional

POLICY = "adaptive"
FLAG = "--radix-eviction-policy-config"

# Upstream policies whose priority of a resident node never falls, which is
# what the incremental index needs. 'mru' and 'tlru' are not among them.
INDEXABLE_POLICIES = ("lru", "lfu", "fifo", "filo", "priority", "slru")

_MAX_TOKENS = 1 << 20


def _error(policy: str, key: str, value: Any, allowed: str) -> ValueError:
    return ValueError(
        f"{FLAG}: key {key!r} of --radix-eviction-policy {policy} must be "
        f"{allowed}, got {value!r}."
    )


def _choice(policy: str, key: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise _error(policy, key, value, "one of " + ", ".join(map(repr, choices)))
    return value


def _boolean(policy: str, key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _error(policy, key, value, "true or false")
    return value


def _integer(policy: str, key: str, value: Any, low: int, high: int) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not low <= value <= high
    ):
        raise _error(policy, key, value, f"an integer from {low} to {high}")
    return value


def _number(policy: str, key: str, value: Any, low: float, high: float) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not low <= value <= high  # NaN fails too
    ):
        raise _error(policy, key, value, f"a number from {low:g} to {high:g}")
    return float(value)


def _reject_unknown(policy: str, config: Mapping[str, Any], allowed: tuple[str, ...]):
    unknown = sorted(set(config) - set(allowed), key=str)
    if unknown:
        raise ValueError(
            f"{FLAG}: unknown key {unknown[0]!r} (value {config[unknown[0]]!r}) for "
            f"--radix-eviction-policy {policy}. Allowed keys: {', '.join(allowed)}."
        )


@dataclass(frozen=True, slots=True)
class TrimConfig:
    """How much of a victim leaf an eviction takes.

    trim: split the leaf and take only its tail; else take whole leaves.
    trim_tokens: least tokens one trim frees, so that a run of tiny allocations
        does not come back to the same leaf each time; None: see ``least``.
    block_tokens: tree tokens in a block of 512 real ones.
    """

    trim: bool
    trim_tokens: Optional[int]
    block_tokens: int = 512

    def least(self, pool_tokens: int, page_size: int) -> int:
        """Least tokens of one trim: by default 1/128 of the pool, at most 64 blocks."""
        if self.trim_tokens is not None:
            return self.trim_tokens
        return max(page_size, min(pool_tokens // 128, 64 * self.block_tokens))


@dataclass(frozen=True, slots=True)
class AdaptiveConfig:
    """Validated options of the adaptive policy.

    mode: ``learned`` or ``weighted``.
    block_tokens: tree tokens in one block of the class feature "unknown blocks".
    age: ``time`` (event time from request arrival times) or ``requests``.
    ghost_ratio: pages remembered after eviction, in pools.
    w_recency, w_frequency, w_depth: weights of the weighted mode.
    """

    mode: str
    trim: TrimConfig
    block_tokens: int = 512
    age: str = "time"
    ghost_ratio: float = 4.0
    w_recency: float = 1.0
    w_frequency: float = 0.5
    w_depth: float = 0.1


_SHARED_KEYS = ("mode", "trim", "trim_tokens", "block_tokens")
_LEARNED_KEYS = (*_SHARED_KEYS, "age", "ghost_ratio")
_WEIGHTS = {"w_recency": 1.0, "w_frequency": 0.5, "w_depth": 0.1}
_WEIGHTED_KEYS = _SHARED_KEYS + tuple(_WEIGHTS)


def _trim_config(
    policy: str, config: Mapping[str, Any], default: bool, block_tokens: int = 512
) -> TrimConfig:
    tokens = config.get("trim_tokens")
    if tokens is not None:
        tokens = _integer(policy, "trim_tokens", tokens, 1, _MAX_TOKENS)
    trim = _boolean(policy, "trim", config.get("trim", default))
    return TrimConfig(trim, tokens, block_tokens)


def parse_adaptive_config(config: Optional[Mapping[str, Any]]) -> AdaptiveConfig:
    """Validate the config of ``adaptive``; a ValueError names key, value and range."""
    config = {} if config is None else config
    if not isinstance(config, Mapping):
        raise ValueError(f"{FLAG}: must be a JSON object, got {config!r}.")
    mode = _choice(
        POLICY, "mode", config.get("mode", "learned"), ("learned", "weighted")
    )
    name = f"{POLICY} (mode {mode})"
    weighted = mode == "weighted"
    _reject_unknown(name, config, _WEIGHTED_KEYS if weighted else _LEARNED_KEYS)
    block = _integer(
        name, "block_tokens", config.get("block_tokens", 512), 1, _MAX_TOKENS
    )
    trim = _trim_config(name, config, True, block)
    if not weighted:
        ghosts = _number(name, "ghost_ratio", config.get("ghost_ratio", 4.0), 0, 16)
        age = _choice(name, "age", config.get("age", "time"), ("time", "requests"))
        return AdaptiveConfig(mode, trim, block, age, ghosts)
    weights = {
        key: _number(name, key, config.get(key, default), 0, 1000)
        for key, default in _WEIGHTS.items()
    }
    if not any(weights.values()):
        raise ValueError(
            f"{FLAG}: at least one of {', '.join(weights)} must be above 0 for "
            f"--radix-eviction-policy {name}, got all 0."
        )
    return AdaptiveConfig(mode, trim, block, **weights)


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """Options of an upstream policy that runs on the incremental index.

    strategy_config: what is left for the upstream strategy's constructor.
    """

    trim: TrimConfig
    strategy_config: dict[str, Any]


_INDEX_KEYS = ("index", "trim", "trim_tokens")


def parse_index_config(
    policy: str, config: Optional[Mapping[str, Any]]
) -> Optional[IndexConfig]:
    """Split our options from an upstream policy's config.

    Returns None when neither ``index`` nor ``trim`` is true, that is, when
    upstream's own code shall run. Trimming runs on the index, so ``trim`` alone
    turns it on too.
    """
    if not isinstance(config, Mapping) or not set(config) & set(_INDEX_KEYS):
        return None
    if policy not in INDEXABLE_POLICIES:
        key = sorted(set(config) & set(_INDEX_KEYS))[0]
        raise ValueError(
            f"{FLAG}: key {key!r} (value {config[key]!r}) is not available for "
            f"--radix-eviction-policy {policy}. Policies that have it: "
            f"{', '.join(INDEXABLE_POLICIES)}."
        )
    trim = _trim_config(policy, config, False)
    index = _boolean(policy, "index", config.get("index", trim.trim))
    if trim.trim and not index:
        raise _error(policy, "index", False, "true when 'trim' is true")
    if not index:
        return None
    rest = {k: v for k, v in config.items() if k not in _INDEX_KEYS}
    return IndexConfig(trim=trim, strategy_config=rest)
