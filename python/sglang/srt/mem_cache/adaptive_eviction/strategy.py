# SPDX-License-Identifier: Apache-2.0
"""Entries for the tree's table of eviction strategies.

The tree core builds a strategy by name and config. Ours only carry the validated
options; the components read them and does the selection.
"""

from __future__ import annotations

from typing import Any, Callable

from sglang.srt.mem_cache.evict_policy import EvictionStrategy

from .config import (
    INDEXABLE_POLICIES,
    POLICY,
    AdaptiveConfig,
    IndexConfig,
    parse_adaptive_config,
    parse_index_config,
)


class AdaptiveStrategy(EvictionStrategy):
    """Options of ``adaptive``; ``rank`` is bound by the component of the tree."""

    # A partial match must not refresh the suffix it did not use.
    splits_keep_recency = True

    def __init__(self, **config: Any) -> None:
        self.config: AdaptiveConfig = parse_adaptive_config(config)
        self.rank: Callable[[Any], Any] | None = None

    def get_priority(self, node: Any) -> Any:
        if self.rank is None:
            raise RuntimeError(
                "the adaptive policy selects through its own component; this tree "
                "was built without it"
            )
        return self.rank(node)


class IndexedStrategy(EvictionStrategy):
    """An upstream strategy with the options of the incremental index."""

    def __init__(self, inner: EvictionStrategy, config: IndexConfig) -> None:
        self.config = config
        self.get_priority = inner.get_priority  # one call less on the hot path

    def get_priority(self, node: Any) -> Any:  # pragma: no cover - replaced above
        raise NotImplementedError


def _with_index(policy: str, factory: Callable[..., EvictionStrategy]):
    def build(**config: Any) -> EvictionStrategy:
        options = parse_index_config(policy, config)
        if options is None:
            for key in ("index", "trim", "trim_tokens"):
                config.pop(key, None)
            return factory(**config)
        return IndexedStrategy(factory(**options.strategy_config), options)

    return build


def extended_factories(
    upstream: dict[str, Callable[..., EvictionStrategy]],
) -> dict[str, Callable[..., EvictionStrategy]]:
    """Upstream's table with ``adaptive`` and the index options of other policies."""
    table = dict(upstream)
    for name in INDEXABLE_POLICIES:
        table[name] = _with_index(name, upstream[name])
    table[POLICY] = AdaptiveStrategy
    return table
