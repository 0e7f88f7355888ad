# SPDX-License-Identifier: Apache-2.0
"""When a prompt's KV will be ready on its prefill instance.

Upstream's prefill starts on a request when decode has room for it, so whom decode serves
first decides what prefill computes first. Each instance is therefore taken for one server
that computes what has the fewest missing tokens first, which gives the least mean wait, at
a speed learned from the requests that came back (tokens computed a second, exponentially
weighted). The bound on a prediction keeps the long ones from starving.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Callable, Optional

# Assumed until the first request came back; only orders instances by their backlog.
FIRST_SPEED = 10_000.0
# Weight that the past keeps with each request.
KEEP = 0.9
# Requests that wait: beyond it the oldest are forgotten.
MOST_REQUESTS = 65_536
# Waiting requests that each prediction looks at, to forget those that are gone.
LOOKED_AT = 2
# An instance that nothing waits for is forgotten after so many seconds.
FORGET_AFTER_S = 600.0
# Requests whose missing tokens need as many bits count as equally long: they keep their
# order of arrival, and the work before a request is a short sum however many wait.
_SIZES = 64


@dataclass
class _Instance:
    last_ready: float = 0.0
    used_at: float = 0.0
    # Missing tokens of the requests that wait, by their number of bits.
    backlog: list[int] = field(default_factory=lambda: [0] * _SIZES)
    # The last prediction for each number of bits.
    latest: list[float] = field(default_factory=lambda: [0.0] * _SIZES)
    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else FIRST_SPEED


class ReadyModel:
    """Args:
    clock: monotonic seconds.
    max_wait_s: no prediction lies further ahead.
    is_known: whether a request is still under way; of some ends nobody tells.
    """

    def __init__(
        self,
        *,
        max_wait_s: float,
        clock: Callable[[], float] = time.perf_counter,
        is_known: Callable[[str], bool] = lambda request: True,
    ):
        self._is_known = is_known
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
        self._forget_gone()
        known = self._instances.get(instance)
        if known is None:
            self._forget_unused(now)
            known = self._instances[instance] = _Instance()
        known.used_at = now
        self.forget(request)
        size = tokens.bit_length()
        before = sum(known.backlog[: size + 1])
        ready_at = now + min((before + tokens) / known.speed, self._max_wait_s)
        if known.backlog[size]:
            # The instance may be faster than was thought when those before came.
            ready_at = max(ready_at, known.latest[size])
        known.latest[size] = ready_at
        known.backlog[size] += tokens
        self._waiting[request] = (instance, tokens, now)
        if len(self._waiting) > MOST_REQUESTS:
            self.forget(next(iter(self._waiting)))
        return ready_at

    def _forget_gone(self) -> None:
        for request in list(itertools.islice(self._waiting, LOOKED_AT)):
            if self._is_known(request):
                self._waiting.move_to_end(request)  # others are looked at next time
            else:
                self.forget(request)

    def _forget_unused(self, now: float) -> None:
        for name, instance in list(self._instances.items()):
            if now - instance.used_at > FORGET_AFTER_S and not any(instance.backlog):
                del self._instances[name]

    def ready(self, request: str, at: Optional[float] = None) -> None:
        """It came back: learn from it. An unknown request is ignored.

        Args:
            at: when, by the model's clock; None is now.
        """
        waiting = self._waiting.get(request)
        if waiting is None:
            return
        instance, tokens, arrival = waiting
        known, now = self._instances[instance], self._clock() if at is None else at
        self.forget(request)
        served = now - max(arrival, known.last_ready)
        if served > 0:
            known.tokens = KEEP * known.tokens + tokens
            known.seconds = KEEP * known.seconds + served
        known.last_ready = max(known.last_ready, now)

    def forget(self, request: str) -> None:
        """It will not come back, or it did."""
        waiting = self._waiting.pop(request, None)
        if waiting is not None:
            instance, tokens, _ = waiting
            self._instances[instance].backlog[tokens.bit_length()] -= tokens

    def tokens_per_s(self, instance: str) -> float:
        """Learned speed of an instance."""
        known = self._instances.get(instance)
        return known.speed if known is not None else FIRST_SPEED
