# SPDX-License-Identifier: Apache-2.0
"""Schedulers with nothing but a cache of a given kind, for start-up checks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def scheduler_with_cache(*components: Any, cache: type | None = None, **tree: Any) -> Any:
    """Returns a stand-in whose tree caches full attention and ``components`` beside it.

    Args:
        components: of upstream's ``ComponentType``.
        cache: the tree's class, upstream's unified one unless given.
        tree: further attributes of the tree.
    """
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    made = object.__new__(cache or UnifiedRadixCache)
    made.tree_components = (ComponentType.FULL, *components)
    for name, value in tree.items():
        setattr(made, name, value)
    return SimpleNamespace(tree_cache=made, is_generation=True)
