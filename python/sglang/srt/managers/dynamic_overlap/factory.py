# SPDX-License-Identifier: Apache-2.0
"""Builds a scheduler's dynamic overlap, or refuses with the reason."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Optional

from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.environ import envs
from sglang.srt.managers.dynamic_overlap.config import FLAG, parse_config
from sglang.srt.managers.dynamic_overlap.controller import DynamicOverlap
from sglang.srt.managers.dynamic_overlap.decision import OverlapDecisionMaker
from sglang.srt.managers.dynamic_overlap.metrics import OverlapMetrics
from sglang.srt.managers.dynamic_overlap.timing import (
    DeviceClock,
    HostClock,
    StepTimer,
)
from sglang.srt.runtime_context import get_parallel, get_schedule

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler import Scheduler

logger = logging.getLogger(__name__)


def create_dynamic_overlap(scheduler: Scheduler) -> Optional[DynamicOverlap]:
    """What ``--enable-dynamic-overlap`` asks for; None without it.

    Raises:
        ValueError: the scheduler runs without the overlap loop after all.
    """
    schedule = get_schedule()
    if not schedule.enable_dynamic_overlap:
        return None
    if not scheduler.enable_overlap:
        raise ValueError(
            f"{FLAG} needs the overlap loop, but this model or another argument "
            "switched it off while the model was loaded; the log names it"
        )
    config = parse_config(schedule.dynamic_overlap_config)
    synchronous = scheduler.device == "cpu"
    maker = OverlapDecisionMaker(config, synchronous)
    timer = metrics = None
    # Input is broadcast from this rank, so its times decide.
    if get_parallel().tp_rank == 0:
        clock = HostClock() if synchronous else _device_clock(scheduler)
        timer = StepTimer(clock, maker.observe)
        collector = scheduler.metrics_collector
        metrics = OverlapMetrics(maker, collector.labels if collector else None)
        logger.info(
            "Dynamic overlap: forward passes timed by %s; %s",
            "the host's clock" if synchronous else "device events",
            config,
        )
    plain_launches = (
        synchronous
        and scheduler.is_generation
        and scheduler.spec_algorithm.is_none()
        and not envs.SGLANG_ENABLE_DELAY_SAMPLE.get()
    )
    return DynamicOverlap(
        scheduler,
        maker,
        metrics,
        timer,
        chunks_send_kv=scheduler.disaggregation_mode == DisaggregationMode.PREFILL,
        plain_launches=plain_launches,
        plain_passes=plain_launches and not scheduler.require_mlp_sync,
    )


def _device_clock(scheduler: Scheduler) -> DeviceClock:
    return DeviceClock(lambda: scheduler.device_module.Event(enable_timing=True))
