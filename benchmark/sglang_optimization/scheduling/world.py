# SPDX-License-Identifier: Apache-2.0
"""The scheduler's parts that a run needs, built as a server builds them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

from common.cli import BenchError
from eviction.pool import make_cache

from .arms import Arm
from .jobs import Job

_published = False


def _publish() -> None:
    """Publish server arguments of a model-free scheduler process, once."""
    global _published
    if _published:
        return
    from sglang.srt.runtime_context import publish
    from sglang.srt.server_args import ServerArgs

    publish(ServerArgs(model_path="dummy"), role="scheduler")
    _published = True


class World:
    """One cache, its allocator and one ``SchedulePolicy``."""

    def __init__(self, arm: Arm, policy: Any, cache: Any):
        self.arm = arm
        self.policy = policy
        self.cache = cache
        self.allocator = cache.token_to_kv_pool_allocator
        self.page_size = cache.page_size
        self._sampling: dict[int, Any] = {}
        self._made = 0

    def request(self, job: Job, processed_tokens: int, arrived_s: float) -> Any:
        """A real ``Req`` for ``job``, as it enters the waiting queue."""
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        sampling = self._sampling.get(job.output_tokens)
        if sampling is None:
            sampling = SamplingParams(max_new_tokens=job.output_tokens)
            self._sampling[job.output_tokens] = sampling
        self._made += 1
        # Upstream breaks ties of hrrn by id: let ids sort as they arrive.
        req = Req(f"{self._made:09d}", "", job.tokens(), sampling)
        req.time_stats.wait_queue_entry_time = float(self._made)
        req.time_stats.arrival_s = arrived_s
        req.arrival_processed_tokens = processed_tokens
        return req


@contextmanager
def world(arm: Arm, *, capacity: int, page_size: int, core: str, eviction: str) -> Iterator[World]:
    """Build a world for ``arm``; upstream's settings are put back afterwards.

    Raises:
        BenchError: the installed sglang lacks the order that the arm needs, or
            rejects its configuration.
    """
    _publish()
    from sglang.srt.managers import schedule_policy
    from sglang.srt.runtime_context import get_memory, get_schedule

    limit = schedule_policy.WAITING_QUEUE_PREFIX_MATCH_MAX
    settings: dict[str, Any] = {"schedule_policy": arm.policy}
    # The queue's refresh asks for it.
    memory = {"radix_eviction_policy": eviction}
    if arm.config is not None:
        settings["schedule_policy_config"] = arm.config
    try:
        if arm.unlimited:
            schedule_policy.WAITING_QUEUE_PREFIX_MATCH_MAX = 1 << 60
        with get_schedule().override(**settings), get_memory().override(**memory):
            cache = make_cache(
                capacity=capacity,
                page_size=page_size,
                core=core,
                eviction_policy=eviction,
            )
            policy = schedule_policy.SchedulePolicy(arm.policy, cache, False, False, False)
            yield World(arm, policy, cache)
    except ValueError as error:
        if "schedule_policy_config" in str(error) or "schedule-policy-config" in str(error):
            raise BenchError(str(error)) from None
        raise
    finally:
        schedule_policy.WAITING_QUEUE_PREFIX_MATCH_MAX = limit
