# SPDX-License-Identifier: Apache-2.0
"""Builds a scheduler's cache warmer, or refuses with the reason."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Optional

from sglang.srt.managers.io_struct import CacheWarmingReqInput
from sglang.srt.mem_cache.cache_warming.hints import HintOrder
from sglang.srt.mem_cache.cache_warming.lora_ids import LoraIds
from sglang.srt.mem_cache.cache_warming.metrics import WarmingMetrics
from sglang.srt.mem_cache.cache_warming.planner import Planner
from sglang.srt.mem_cache.cache_warming.render import (
    PromptRenderer,
    scheduler_side_chat,
)
from sglang.srt.mem_cache.cache_warming.settings import (
    DEFAULT_STEP_S,
    FLAG,
    WarmingSettings,
    budget_tokens,
    chunk_tokens,
)
from sglang.srt.mem_cache.cache_warming.steps import WarmingStep
from sglang.srt.mem_cache.cache_warming.tree import cached_tokens
from sglang.srt.mem_cache.cache_warming.warmer import CacheWarmer
from sglang.srt.mem_cache.full_attention_only import require_full_attention
from sglang.srt.runtime_context import (
    get_lora,
    get_memory,
    get_parallel,
    get_schedule,
)
from sglang.utils import TypeBasedDispatcher

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler import Scheduler

logger = logging.getLogger(__name__)


def create_cache_warmer(scheduler: Scheduler) -> Optional[CacheWarmer]:
    """The warmer that ``--cache-warming-prompts`` asks for; None without it.

    Registers the warmer's inputs with the scheduler's dispatcher and itself with
    the tree cache.

    Raises:
        ValueError: the model or its cache cannot be warmed, or an entry of the
            file is empty or too long.
    """
    memory = get_memory()
    if memory.cache_warming_prompts is None:
        return None
    _check_supported(scheduler)
    settings = _settings(scheduler)
    parallel = get_parallel()
    decides = (
        parallel.pp_rank == 0
        and parallel.attn_tp_rank == 0
        and parallel.attn_cp_rank == 0
    )
    collector = scheduler.metrics_collector
    exported = decides and collector is not None
    metrics = WarmingMetrics(collector.labels if exported else None)
    lora_ids = LoraIds(get_lora().lora_paths)
    planner = None
    if decides:
        renderer = PromptRenderer(
            scheduler.tokenizer,
            lambda: scheduler_side_chat(
                scheduler.server_args,
                scheduler.model_config,
                scheduler.tokenizer,
                # Set for multimodal models only.
                getattr(scheduler, "processor", None),
            ),
            scheduler.model_config.vocab_size,
        )
        tree_cache = scheduler.tree_cache
        planner = Planner(
            settings,
            cached_tokens=lambda key: cached_tokens(tree_cache, key),
            render=renderer.render,
            lora_id_of=lora_ids.get,
            metrics=metrics,
        )
        # Entries are tokenized again, one an idle pass; this pass is for errors.
        count = planner.check_file()
        logger.info(
            "Cache warming: %d prompts, mode %s, steps of %s%d tokens, budget %d tokens",
            count,
            settings.mode,
            "" if settings.step_s is None else f"{settings.step_s:g} s, at most ",
            settings.chunk_tokens,
            settings.budget_tokens,
        )
    warmer = CacheWarmer(
        scheduler,
        planner,
        hints=HintOrder() if settings.mode == "tree" else None,
        metrics=metrics,
        lora_ids=lora_ids,
        serve_priority=get_schedule().enable_priority_scheduling
        or (
            memory.radix_eviction_policy == "priority"
            and not get_schedule().abort_on_priority_when_disabled
        ),
    )
    scheduler.policy.warming_hints = warmer.hints
    prefix_order = getattr(scheduler.policy, "prefix_order", None)
    if prefix_order is not None:
        # --schedule-policy-config replaces the sort that reads the policy's hints.
        prefix_order.hints = warmer.hints
    scheduler.tree_cache.cache_warmer = warmer
    scheduler._request_dispatcher += TypeBasedDispatcher(
        [(WarmingStep, warmer.handle), (CacheWarmingReqInput, warmer.control)]
    )
    return warmer


def _settings(scheduler: Scheduler) -> WarmingSettings:
    memory = get_memory()
    return WarmingSettings(
        path=memory.cache_warming_prompts,
        mode=memory.cache_warming_mode,
        chunk_tokens=chunk_tokens(
            memory.cache_warming_chunk_size,
            scheduler.chunked_prefill_size,
            scheduler.page_size,
        ),
        budget_tokens=budget_tokens(
            memory.cache_warming_budget_tokens, scheduler.max_total_num_tokens
        ),
        step_s=DEFAULT_STEP_S if memory.cache_warming_chunk_size is None else None,
        page_size=scheduler.page_size,
        uncached_tail=int(scheduler.tree_cache.tree_core.is_eagle),
        # Requests of max_req_input_len tokens are refused (validate_input_length).
        max_prompt_tokens=scheduler.max_req_input_len - 1,
        low_priority_first=get_schedule().schedule_low_priority_values_first,
    )


def _check_supported(scheduler: Scheduler) -> None:
    if not scheduler.is_generation:
        raise ValueError(f"{FLAG} needs a model that generates text")
    require_full_attention(
        scheduler.tree_cache,
        FLAG,
        because="whose state cannot be looked up without disturbing its order of "
        "eviction",
    )
