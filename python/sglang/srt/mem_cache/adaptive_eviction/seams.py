# SPDX-License-Identifier: Apache-2.0
"""What the edits to upstream files call: choice of component, refusals, checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from .config import (
    FLAG,
    POLICY,
    parse_adaptive_config,
    parse_index_config,
)

if TYPE_CHECKING:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams


def uses_index(policy: str, config: Optional[dict[str, Any]]) -> bool:
    """Whether this policy and config run on our component."""
    policy = policy.lower()
    return policy == POLICY or parse_index_config(policy, config) is not None


def rust_fallback_reason(params: CacheInitParams) -> Optional[str]:
    """Why the Rust core cannot serve these params, or None."""
    if params.disable or not uses_index(
        params.eviction_policy, params.eviction_policy_config
    ):
        return None
    if params.eviction_policy.lower() == POLICY:
        return "the adaptive eviction policy selects victims in Python"
    return f"the options 'index' and 'trim' of {FLAG} need the Python TreeCore"


def component_registry(registry: dict, params: CacheInitParams) -> dict:
    """The component table of a unified tree, with ours for FULL where asked for.

    Raises:
        ValueError: the tree has components that the index does not cover.
    """
    policy, config = params.eviction_policy.lower(), params.eviction_policy_config
    if params.disable or not uses_index(policy, config):
        return registry
    what = f"--radix-eviction-policy {policy}"
    if policy != POLICY:
        what += f" with 'index' or 'trim' in {FLAG}"
    others = [c.name for c in params.tree_components if c is not ComponentType.FULL]
    if others:
        raise ValueError(
            f"{what} supports full-attention models only; this model's radix tree "
            f"also holds {', '.join(others)} state, which has its own eviction "
            "order and is lost when a leaf is trimmed. Choose another policy."
        )
    if (params.component_registry_override or {}).get(ComponentType.FULL):
        raise ValueError(
            f"{what} brings its own FULL component, but the tree was built with an "
            "override for it. Drop the override or choose another policy."
        )
    from .learned_component import LearnedFullComponent
    from .static_components import StaticFullComponent, WeightedFullComponent

    if policy != POLICY:
        chosen = StaticFullComponent
    elif parse_adaptive_config(config).mode == "weighted":
        chosen = WeightedFullComponent
    else:
        chosen = LearnedFullComponent
    return {**registry, ComponentType.FULL: chosen}


def check_tree_cache(cache: Any, policy: str, config: Optional[dict[str, Any]]) -> None:
    """Refuse a tree cache that would not follow the policy."""
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    if not uses_index(policy, config) or getattr(cache, "disable", False):
        return
    if type(cache) is not UnifiedRadixCache:
        raise ValueError(
            f"--radix-eviction-policy {policy}"
            + ("" if policy == POLICY else f" with 'index' or 'trim' in {FLAG}")
            + f" requires UnifiedRadixCache, but tree_cache is {type(cache).__name__}. "
            "Drop the flag or the option that selected another tree cache "
            "(LMCache, FlexKV, --radix-cache-backend, a pure sliding-window model)."
        )


def check_server_args(policy: str, config: Optional[dict[str, Any]]) -> None:
    """Validate policy and config at start-up, before any model is loaded."""
    policy = policy.lower()
    if policy == POLICY:
        parse_adaptive_config(config)
    else:
        parse_index_config(policy, config)
