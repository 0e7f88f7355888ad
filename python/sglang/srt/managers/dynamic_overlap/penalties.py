# SPDX-License-Identifier: Apache-2.0
"""Penalties count the same tokens whether or not a result was processed early.

While a decode step is prepared, upstream hands the penalizers the last token of each
request's ``output_ids``. Under overlap that is the token before the queued result's.
With the result processed early it would be one further: after a switch a token would
be left out, or counted twice after a switch back. So for requests whose result was
processed early in this pass the penalizers get the token they would have got.

A process holds one scheduler, and the batch that asks knows none: hence the module's
own state. It is empty but between an early result and the launch that follows it.
"""

from __future__ import annotations

from typing import Any, Sequence

_before: dict[int, int] = {}


def remember(batch: Any) -> None:
    """Keeps the last tokens of a batch whose result is about to be processed early."""
    for req in batch.reqs:
        tokens = req.output_ids or req.origin_input_ids
        _before[id(req)] = tokens[-1]


def forget() -> None:
    """The next batch has been prepared."""
    _before.clear()


def last_tokens(reqs: Sequence[Any], tokens: list[int]) -> list[int]:
    """``tokens``, but for early results the token before them.

    Args:
        reqs: requests of the batch being prepared.
        tokens: the last known token of each.
    """
    if not _before:
        return tokens
    return [
        _before.get(id(req), token) for req, token in zip(reqs, tokens, strict=True)
    ]
