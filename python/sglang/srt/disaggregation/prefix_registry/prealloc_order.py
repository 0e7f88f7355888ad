# SPDX-License-Identifier: Apache-2.0
"""Order of the queue of requests that wait for KV on a decode instance.

The predicted time comes with the request from the tokenizer process, and what decode
holds is the same on every rank, so all ranks order alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional

if TYPE_CHECKING:
    from sglang.srt.disaggregation.decode import DecodePreallocQueue, DecodeRequest
    from sglang.srt.managers.schedule_batch import Req


class PreallocOrder:
    """By the predicted time at which the KV is on this instance, earliest first.

    Args:
        held_tokens: tokens of a request's prompt that this instance holds itself.
        transfer_tokens_per_s: speed of the transfer of the others, or None to leave
            it out.
        max_wait_s: no transfer counts as longer.
    """

    def __init__(
        self,
        held_tokens: Callable[[Req], int],
        transfer_tokens_per_s: Optional[float] = None,
        max_wait_s: float = float("inf"),
    ):
        self._max_wait_s = max_wait_s
        self._held_tokens = held_tokens
        self._speed = transfer_tokens_per_s

    def sort(self, queue: list[DecodeRequest]) -> None:
        """Sort in place; requests without a prediction keep their places in front."""
        if len(queue) > 1:
            queue.sort(key=self._key)

    def _key(self, waiting: DecodeRequest) -> float:
        req: Any = waiting.req
        if req.predicted_ready_s is None:
            return float("-inf")
        if req.kv_here_s is None:
            req.kv_here_s = req.predicted_ready_s
            if self._speed is not None:
                # Once, when it is first ordered: later matches would move it about.
                missing = len(req.origin_input_ids) - self._held_tokens(req)
                req.kv_here_s += min(missing / self._speed, self._max_wait_s)
        return req.kv_here_s


def create_prealloc_order(queue: DecodePreallocQueue) -> Optional[PreallocOrder]:
    """The order that the settings ask for; None for that of arrival."""
    from sglang.srt.disaggregation.prefix_registry.settings import (
        ARRIVAL,
        parse_settings,
    )
    from sglang.srt.runtime_context import get_disagg

    disagg = get_disagg()
    if not disagg.enable_cross_instance_cache_sync:
        return None
    settings = parse_settings(disagg.cross_instance_cache_config, "decode")
    if settings.order == ARRIVAL:
        return None
    tree_cache = queue.tree_cache

    def held_tokens(req: Req) -> int:
        if not disagg.disaggregation_decode_enable_radix_cache:
            return 0
        from sglang.srt.mem_cache.radix_cache import RadixKey

        key = RadixKey(req.origin_input_ids, req.extra_key, cache_salt=req.cache_salt)
        # A walk: no recency is refreshed and nothing is locked.
        return tree_cache.tree_core.match_full_device_prefix(key)[0]

    return PreallocOrder(
        held_tokens, settings.transfer_tokens_per_s, settings.max_wait_s
    )
