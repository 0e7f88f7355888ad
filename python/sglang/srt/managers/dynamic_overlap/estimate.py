# SPDX-License-Identifier: Apache-2.0
"""What a step costs, averaged, and what overlapping it saves.

One pass of the scheduler's loop schedules a batch (S seconds of host time), launches
it (L) and processes a result (P); the device computes it in F seconds, counted from
the start of its launch. Processed at once, a step takes S + max(L, F) + P. Overlapped,
the forward pass runs while the host does all three, and a step takes
max(F, S + L + P). The difference is

    min(max(F - L, 0), S + P)

so what decides is the ratio of the forward time that the launch leaves over, F - L, to
the host time that could run under it, S + P. Where launching blocks until the result
is there, as on a CPU, F = L and nothing can be saved.

Overlapping has a price: what ends in a step is noticed one step late, so a row is
computed that nobody wants. With a share w of such rows, a useful row costs
1 / (1 - w) times as much.
"""

from __future__ import annotations

# Samples that pay for compilation, allocation and cold caches.
SKIPPED = 2
# A single sample counts at most this many times the average: a page fault, a swapped
# out process or a stopped debugger says nothing about the next step.
CLIP = 10.0


class StepCost:
    """Averages over the steps of one kind in one state, in seconds.

    Attributes:
        count: samples taken in, without the skipped ones.
        schedule, launch, forward, process: see the module.
    """

    __slots__ = (
        "weight",
        "seen",
        "count",
        "schedule",
        "launch",
        "forward",
        "process",
    )

    def __init__(self, weight: float):
        self.weight = weight
        self.seen = self.count = 0
        self.schedule = self.launch = self.forward = self.process = 0.0

    def add(
        self, schedule: float, launch: float, forward: float, process: float
    ) -> None:
        """Take in one step, in seconds."""
        self.seen += 1
        if self.seen <= SKIPPED:
            return
        self.count = count = self.count + 1
        if count == 1:
            self.schedule, self.launch = schedule, launch
            self.forward, self.process = forward, process
            return
        weight = self.weight
        if weight * count < 1:
            weight = 1 / count
        # Written out: a loop or a function would cost more than the arithmetic.
        value = self.schedule
        most = CLIP * value
        self.schedule += weight * ((schedule if schedule < most else most) - value)
        value = self.launch
        most = CLIP * value
        self.launch += weight * ((launch if launch < most else most) - value)
        value = self.forward
        most = CLIP * value
        self.forward += weight * ((forward if forward < most else most) - value)
        value = self.process
        most = CLIP * value
        self.process += weight * ((process if process < most else most) - value)

    def forget(self) -> None:
        """Starts anew; what compiles has been compiled."""
        self.count = 0

    @property
    def hideable(self) -> float:
        """Seconds of forward pass that a launch leaves for the host to use."""
        return max(0.0, self.forward - self.launch)

    @property
    def host(self) -> float:
        """Seconds of host time that could run under a forward pass."""
        return self.schedule + self.process


def saving(overlapped: StepCost, drained: StepCost, waste: float) -> float:
    """Share of the time per useful row that overlapping saves; negative: costs.

    Each state supplies what is true in it: the first the forward time, the second the
    host time that would be exposed. Both may be the same.

    Args:
        waste: share of the rows that overlapping computes for requests that have
            ended.
    """
    host, useful = drained.schedule + drained.process, 1.0 - waste
    launch, forward = drained.launch, drained.forward
    step = host + (launch if launch > forward else forward)
    if step <= 0 or useful <= 0:
        return 0.0
    hidden = overlapped.forward - overlapped.launch
    if hidden <= 0:
        return 1.0 - 1.0 / useful
    return 1.0 - (1.0 - (hidden if hidden < host else host) / step) / useful
