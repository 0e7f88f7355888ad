# SPDX-License-Identifier: Apache-2.0
"""How many tokens the next step computes.

A step is what a request arriving during it waits for. How long a number of tokens
takes differs by orders of magnitude between devices and models, so unless the user
fixed the size it follows from the steps themselves.
"""

from __future__ import annotations

from typing import Optional

# First step of an engine whose speed is not known yet.
START_TOKENS = 64
# Fewer tokens take hardly less time: what remains is the cost of a pass.
LEAST_TOKENS = 32


class StepSize:
    """Tokens of a step, a multiple of the page size.

    Args:
        limit: most tokens of a step.
        page_size: tokens of a KV page.
        target_s: seconds that a step should take; None for always ``limit``.
    """

    def __init__(self, limit: int, page_size: int, target_s: Optional[float]):
        self._limit = limit
        self._page_size = page_size
        self._target_s = target_s
        self.tokens = limit
        if target_s is not None:
            self._set(START_TOKENS)

    def took(self, tokens: int, seconds: float) -> None:
        """A step of ``tokens`` took ``seconds``."""
        target_s = self._target_s
        if target_s is None or seconds <= 0:
            return
        if tokens < self.tokens and seconds <= target_s:
            return  # the end of a prompt: says nothing about a whole step
        # Halved or doubled at most: one step may have been held up by chance.
        self._set(int(self.tokens * min(2.0, max(0.5, target_s / seconds))))

    def _set(self, tokens: int) -> None:
        least = min(LEAST_TOKENS, self._limit)
        tokens = min(self._limit, max(least, tokens))
        self.tokens = max(1, tokens // self._page_size) * self._page_size
