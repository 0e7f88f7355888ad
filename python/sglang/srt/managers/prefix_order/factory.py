# SPDX-License-Identifier: Apache-2.0
"""Builds the longest-prefix order for a ``SchedulePolicy``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Optional

from sglang.srt.environ import envs
from sglang.srt.managers.prefix_order.config import FLAG, applies_to, parse_config
from sglang.srt.managers.prefix_order.order import PrefixOrder
from sglang.srt.managers.prefix_order.watch import MatchWatch
from sglang.srt.mem_cache.common import match_kv_cache
from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_context, get_disagg, get_schedule

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_policy import SchedulePolicy

logger = logging.getLogger(__name__)


def create_prefix_order(policy: SchedulePolicy) -> Optional[PrefixOrder]:
    """The order that ``--schedule-policy-config`` asks for; None when it is unset.

    Raises:
        ValueError: the configuration is malformed, or the prefix cache chosen
            for this model is not one whose changes can be observed.
    """
    from sglang.srt.managers import schedule_policy as upstream

    if not get_context().is_config_namespace_published("schedule"):
        return None
    config = parse_config(get_schedule().schedule_policy_config)
    if config is None or get_disagg().disaggregation_mode == "decode":
        return None
    tree_cache = policy.tree_cache
    if not applies_to(policy.policy.value, policy.enable_priority_scheduling):
        # Upstream itself turned lpm into fcfs: the cache is disabled.
        logger.warning(
            "%s is ignored: the prefix cache is disabled and the policy is %s",
            FLAG,
            policy.policy.value,
        )
        return None
    if not isinstance(tree_cache, UnifiedRadixCache):
        raise ValueError(
            f"{FLAG} requires UnifiedRadixCache, but tree_cache is "
            f"{type(tree_cache).__name__}. Drop the flag or the option that "
            "selected another tree cache for this model."
        )
    full_only = tree_cache.tree_components == (BASE_COMPONENT_TYPE,)
    watch = MatchWatch(
        page_size=tree_cache.page_size,
        is_bigram=tree_cache.tree_core.is_eagle,
        plain=full_only and tree_cache.cache_controller is None,
    )
    sweeping = (
        not full_only
        or type(tree_cache) is not UnifiedRadixCache
        or tree_cache.linker is not None
        or tree_cache.buffer_pipeline is not None
    )
    tree_cache.prefix_watch = watch
    logger.info("Longest-prefix order: %s%s", config, ", sweeping" if sweeping else "")
    return PrefixOrder(
        tree_cache,
        watch,
        config,
        match_kv_cache,
        sibling_check=(
            # With every match forced to miss, upstream holds no sibling back.
            -1
            if envs.SGLANG_RADIX_FORCE_MISS.get()
            else upstream.IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD
        ),
        sibling_share=upstream.IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD,
        full_match_limit=upstream.WAITING_QUEUE_PREFIX_MATCH_MAX,
        capacity=tree_cache.token_to_kv_pool_allocator.size,
        priority_sign=policy.priority_sign if policy.enable_priority_scheduling else 0,
        sweeping=sweeping,
    )
