# SPDX-License-Identifier: Apache-2.0
"""What a policy needs beyond the calls that every cache gets.

The scheduler of a server tells our policy about admission and completion; here the
replay does. The reference policies see each access through the same two calls.
"""

from __future__ import annotations

from typing import Any

from .policies import Policy
from .trace import Request


class Hooks:
    """No extra call; for policies that the tree core runs by itself."""

    full_component: type | None = None

    def __init__(self, policy: Policy):
        self._policy = policy

    def config(self) -> dict[str, Any]:
        """Configuration of the policy for this trace."""
        return self._policy.config

    def attach(self, cache: Any) -> None:
        """Called once with the new cache."""

    def admit(self, cache: Any, request: Request, key: Any, match: Any) -> Any:
        """After the match is locked, before eviction; the result goes to ``finish``."""

    def finish(self, cache: Any, request: Request, handle: Any) -> None:
        """After the last insertion, before the path is unlocked."""

    def state_bytes(self, cache: Any) -> int | None:
        """Memory of the policy's state, or None where it cannot be known.

        Upstream's policies keep numbers on the nodes, 8 bytes each; the Rust core
        does not tell how many nodes it has.
        """
        fields = self._policy.node_fields
        if fields is None or self._policy.core != "python":
            return None
        return 8 * fields * (len(cache.tree_core._node_arena) - 1)

    def details(self, cache: Any) -> dict[str, Any]:
        """Policy-specific counters for the result file."""
        return {}


class ReferenceHooks(Hooks):
    """Sets the strategy object and reports every match to it."""

    def __init__(self, policy: Policy, capacity: int, block_tokens: int):
        from .reference.base import ObservedFullComponent

        super().__init__(policy)
        assert policy.reference is not None
        self._strategy = policy.reference(capacity, block_tokens)
        self.full_component = ObservedFullComponent

    def attach(self, cache: Any) -> None:
        cache.tree_core.eviction_strategy = self._strategy

    def admit(self, cache: Any, request: Request, key: Any, match: Any) -> None:
        core = cache.tree_core
        node = core.node_by_id(match.last_device_node)
        path = []
        while node is not core.root_node:
            path.append(node)
            node = node.parent
        if path:
            self._strategy.on_access(path[::-1])

    def state_bytes(self, cache: Any) -> int | None:
        return int(self._strategy.state_bytes())


class FeatureHooks(Hooks):
    """Translates tree tokens for our policies; one of them stands for a whole block."""

    # The policy's size classes count blocks of this many tokens.
    CLASS_BLOCK_TOKENS = 512

    def __init__(self, policy: Policy, block_tokens: int, page_size: int):
        super().__init__(policy)
        self._block_tokens = block_tokens
        self._page_size = page_size

    def config(self) -> dict[str, Any]:
        if self._policy.eviction_policy == "lru":
            return {"trim_tokens": self._page_size, **self._policy.config}
        tree_tokens = max(1, self.CLASS_BLOCK_TOKENS // self._block_tokens)
        return {"block_tokens": tree_tokens, **self._policy.config}


class AdaptiveHooks(FeatureHooks):
    """Tells our policy about admission and completion, as the scheduler does."""

    _adaptive: Any = None

    def attach(self, cache: Any) -> None:
        from sglang.srt.mem_cache.adaptive_eviction import find_policy

        self._adaptive = find_policy(cache)
        assert self._adaptive is not None, "the cache does not run the adaptive policy"

    def admit(self, cache: Any, request: Request, key: Any, match: Any) -> Any:
        return self._adaptive.admit(
            key, arrival_time=request.arrival_s, node_id=match.best_match_node
        )

    def finish(self, cache: Any, request: Request, handle: Any) -> None:
        self._adaptive.finish(handle, output_tokens=request.output_tokens)

    def state_bytes(self, cache: Any) -> int | None:
        return int(self._adaptive.state_bytes())

    def details(self, cache: Any) -> dict[str, Any]:
        return dict(self._adaptive.report())


def make_hooks(policy: Policy, capacity: int, block_tokens: int, page_size: int) -> Hooks:
    """The hooks that ``policy`` needs."""
    if policy.reference is not None:
        return ReferenceHooks(policy, capacity, block_tokens)
    if policy.config.get("mode") == "learned":
        return AdaptiveHooks(policy, block_tokens, page_size)
    if policy.ours:
        return FeatureHooks(policy, block_tokens, page_size)
    return Hooks(policy)
