# SPDX-License-Identifier: Apache-2.0
"""What a step costs: straight lines in the rows of the batch, in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Line:
    """``fixed + per_row * rows`` seconds."""

    fixed: float
    per_row: float

    def at(self, rows: float) -> float:
        """Seconds for a batch of ``rows``."""
        return self.fixed + self.per_row * rows

    def scaled(self, factor: float) -> Line:
        """Both parts times ``factor``."""
        return Line(self.fixed * factor, self.per_row * factor)


@dataclass(frozen=True)
class StepCosts:
    """Host time to schedule, launch and process a step, and device time to compute it.

    ``prompt``: device time that each prompt of a prefill step adds to the fixed part of
    ``forward``.
    """

    schedule: Line
    launch: Line
    process: Line
    forward: Line
    prompt: float = 0.0

    def with_host(self, factor: float) -> StepCosts:
        """The same with host times multiplied."""
        return replace(
            self,
            schedule=self.schedule.scaled(factor),
            launch=self.launch.scaled(factor),
            process=self.process.scaled(factor),
        )

    def with_forward(self, seconds: float, rows: int) -> StepCosts:
        """The same with a forward pass of ``seconds`` at ``rows``.

        A quarter of it grows with the rows, as in a decode step bound by reading weights.
        A prompt computes for a quarter of it.
        """
        line = Line(0.75 * seconds, 0.25 * seconds / rows)
        return replace(self, forward=line, prompt=0.25 * seconds)


def fit(samples: Sequence[tuple[float, float]]) -> Line:
    """The least-squares line through (rows, seconds), neither part below 0."""
    count = len(samples)
    mean_rows = sum(r for r, _ in samples) / count
    mean_seconds = sum(s for _, s in samples) / count
    spread = sum((r - mean_rows) ** 2 for r, _ in samples)
    slope = 0.0
    if spread:
        slope = sum((r - mean_rows) * (s - mean_seconds) for r, s in samples) / spread
    slope = max(0.0, slope)
    fixed = mean_seconds - slope * mean_rows
    if fixed < 0:
        squares = sum(r * r for r, _ in samples)
        return Line(0.0, max(0.0, sum(r * s for r, s in samples) / squares))
    return Line(fixed, slope)
