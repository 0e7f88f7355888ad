# SPDX-License-Identifier: Apache-2.0
"""Builds a scheduler's sharer, or refuses with the reason."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Optional

from sglang.srt.mem_cache.full_attention_only import require_full_attention
from sglang.srt.mem_cache.spec_radix_sharing.metrics import SharingMetrics
from sglang.srt.mem_cache.spec_radix_sharing.settings import FLAG, SharingSettings
from sglang.srt.mem_cache.spec_radix_sharing.sharer import RadixSharer
from sglang.srt.runtime_context import get_memory, get_parallel

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import Scheduler

logger = logging.getLogger(__name__)


def create_radix_sharer(scheduler: Scheduler) -> Optional[RadixSharer]:
    """The sharer that ``--enable-spec-radix-sharing`` asks for; None without it.

    Makes itself known to the tree cache, where retraction and admission find it.

    Raises:
        ValueError: the model, its cache or the platform cannot share early.
    """
    memory = get_memory()
    if not memory.enable_spec_radix_sharing:
        return None
    check_supported(scheduler)
    tree_cache = scheduler.tree_cache
    settings = SharingSettings(
        interval=memory.spec_radix_sharing_interval,
        accept_threshold=memory.spec_radix_sharing_accept_threshold,
        page_size=scheduler.page_size,
        uncached_tail=int(tree_cache.tree_core.is_eagle),
        # Data-parallel ranks must decide on overlap alike, and their requests differ.
        may_drain=not scheduler.require_mlp_sync,
    )
    parallel = get_parallel()
    collector = scheduler.metrics_collector
    exported = (
        collector is not None
        and parallel.attn_tp_rank == 0
        and parallel.attn_cp_rank == 0
    )
    sharer = RadixSharer(
        settings,
        tree_cache,
        lambda: [batch for batch, _ in getattr(scheduler, "result_queue", None) or ()],
        lambda: _decoding(scheduler),
        SharingMetrics(collector.labels if exported else None),
    )
    tree_cache.radix_sharer = sharer
    logger.info("Early sharing of generated tokens: %s", settings)
    return sharer


def _decoding(scheduler: Scheduler) -> list[Req]:
    """Requests that decode, in a batch of their own or mixed into a prefill."""
    requests = list(scheduler.running_batch.reqs)
    last = scheduler.last_batch
    if last is not None and last.forward_mode.is_mixed():
        requests += last.reqs
    return requests


def check_supported(scheduler: Scheduler) -> None:
    """Refuse what is only known once the model and its cache exist.

    Raises:
        ValueError: names the flag and the reason.
    """
    tree_cache = scheduler.tree_cache
    if not scheduler.is_generation:
        raise ValueError(f"{FLAG} needs a model that generates text")
    require_full_attention(
        tree_cache,
        FLAG,
        because="whose state an insertion would have to copy or cut off in the middle "
        "of a request",
        subclasses=False,  # LMCache's has a checkpoint of its own
    )
    if tree_cache.disable:
        raise ValueError(
            f"{FLAG} needs a prefix cache, which is disabled for this model"
        )
    if scheduler.enable_overlap_mlx:
        raise ValueError(f"{FLAG} does not support the MLX overlap loop")
