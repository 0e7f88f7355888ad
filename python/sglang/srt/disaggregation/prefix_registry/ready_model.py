# SPDX-License-Identifier: Apache-2.0
"""When a prompt's KV will be ready on its prefill instance.

Each instance is taken for one server that works in order of arrival at a speed learned
from the requests that came back (tokens computed a second, exponentially weighted).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Callable

# Assumed until the first request came back; only orders instances by their backlog.
FIRST_SPEED = 10_000.0
# Weight that the past keeps with each request.
KEEP = 0.9
# Requests remembered that never came back (aborted): the oldest are forgotten.
MOST_REQUESTS = 65_536


@dataclass
class _Instance:
    free_at: float = 0.0
    last_ready: float = 0.0
    backlog: int = 0
    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else FIRST_SPEED


class ReadyModel:
    """Args:
    clock: monotonic seconds.
    max_wait_s: no prediction lies further ahead.
    """

    def __init__(
        self, *, max_wait_s: float, clock: Callable[[], float] = time.monotonic
    ):
        self._clock = clock
        self._max_wait_s = max_wait_s
        self._instances: dict[str, _Instance] = {}
        # request -> instance, tokens, arrival
        self._waiting: OrderedDict[str, tuple[str, int, float]] = OrderedDict()

    def predict(self, request: str, instance: str, tokens: int) -> float:
        """The clock's time when ``request`` will be ready.

        At most ``max_wait_s`` from now, so whoever is served in this order is never
        put behind a request that arrives later than that.

        Args:
            tokens: tokens that the instance must compute for it.
        """
        now = self._clock()
        known = self._instances.setdefault(instance, _Instance())
        self.forget(request)
        known.free_at = max(now, known.free_at) + tokens / known.speed
        known.backlog += tokens
        self._waiting[request] = (instance, tokens, now)
        if len(self._waiting) > MOST_REQUESTS:
            self.forget(next(iter(self._waiting)))
        return min(known.free_at, now + self._max_wait_s)

    def ready(self, request: str) -> None:
        """It came back: learn from it. An unknown request is ignored."""
        waiting = self._waiting.get(request)
        if waiting is None:
            return
        instance, tokens, arrival = waiting
        known, now = self._instances[instance], self._clock()
        self.forget(request)
        served = now - max(arrival, known.last_ready)
        if served > 0:
            known.tokens = KEEP * known.tokens + tokens
            known.seconds = KEEP * known.seconds + served
        known.last_ready = now
        known.free_at = now + known.backlog / known.speed

    def forget(self, request: str) -> None:
        """It will not come back, or it did."""
        waiting = self._waiting.pop(request, None)
        if waiting is not None:
            self._instances[waiting[0]].backlog -= waiting[1]

    def tokens_per_s(self, instance: str) -> float:
        """Learned speed of an instance."""
        known = self._instances.get(instance)
        return known.speed if known is not None else FIRST_SPEED
