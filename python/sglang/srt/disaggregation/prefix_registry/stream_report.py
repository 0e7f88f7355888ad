# SPDX-License-Identifier: Apache-2.0
"""What is told of a stream: over HTTP and as metrics."""

from __future__ import annotations

from typing import Any

from sglang.srt.disaggregation.prefix_registry.metrics import READER_COUNTERS
from sglang.srt.disaggregation.prefix_registry.stream import LIVE, Stream


def state(stream: Stream) -> dict[str, Any]:
    """How far a stream's estimates can be believed, as JSON."""
    silence = stream.silence_s()
    return {
        "state": "stale"
        if stream.state == LIVE and stream.is_stale()
        else stream.state,
        "silence_s": None if silence is None else round(silence, 3),
        "lost_blocks": stream.lost_blocks,
    }


def numbers(stream: Stream) -> dict[str, float]:
    """A stream's metrics by their names; counters are totals."""
    counts = stream.counts
    found: dict[str, float] = {
        name: counts[name]
        for name in READER_COUNTERS
        if name not in ("foreign", "evicted_blocks")
    }
    found["foreign"] = sum(
        count for name, count in counts.items() if name.startswith("foreign_")
    )
    registry = stream.registry
    found.update(
        evicted_blocks=registry.evicted_blocks,
        blocks=registry.num_blocks,
        bytes=registry.nbytes,
        live=float(stream.state == LIVE and not stream.is_stale()),
        silence_seconds=stream.silence_s() or 0.0,
        delay_seconds=stream.delay_s or 0.0,
        lost_blocks=stream.lost_blocks,
    )
    return found
