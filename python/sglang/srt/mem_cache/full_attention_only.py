# SPDX-License-Identifier: Apache-2.0
"""Start-up refusal of features that know how to handle full-attention trees only."""

from __future__ import annotations

from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache


def require_full_attention(
    tree_cache: BasePrefixCache, flag: str, *, because: str, subclasses: bool = True
) -> None:
    """Refuse every tree but the unified one that caches full attention and no more.

    Args:
        tree_cache: of the scheduler.
        flag: that asks for the feature.
        because: what the state of other components would make impossible; a clause
            that follows their names.
        subclasses: whether trees derived from the unified one will do.

    Raises:
        ValueError: names the flag and the reason.
    """
    if not isinstance(tree_cache, UnifiedRadixCache) or not (
        subclasses or type(tree_cache) is UnifiedRadixCache
    ):
        raise ValueError(
            f"{flag} requires UnifiedRadixCache, but tree_cache is "
            f"{type(tree_cache).__name__}. Drop the flag or the option that selected "
            "another tree cache for this model."
        )
    others = [
        component.name
        for component in tree_cache.tree_components
        if component != BASE_COMPONENT_TYPE
    ]
    if others:
        raise ValueError(
            f"{flag} supports models with full attention only; this one also caches "
            f"{', '.join(others)}, {because}"
        )
