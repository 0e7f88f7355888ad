# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics ``sglang:prefix_registry_*``, set from numbers kept elsewhere."""

from __future__ import annotations

from typing import Mapping, Optional

PUBLISHER_COUNTERS = {
    "updates": "Updates published.",
    "answers": "Replays and snapshots given to readers.",
    "bad_requests": "Requests of readers that could not be read.",
    "dropped_blocks": "Stored blocks dropped because the publisher's thread was behind.",
}
PUBLISHER_GAUGES = {
    "resident_blocks": "Blocks cached by this instance, as published.",
    "queued_blocks": "Blocks that wait for the publisher's thread.",
    "lost_blocks": "Blocks cached but not told since the cache was last emptied.",
    "epoch": "Epoch of what is published, in seconds since 1970.",
    "up": "1 while publishing, 0 after it failed.",
}
READER_COUNTERS = {
    "updates": "Updates applied.",
    "gaps": "Gaps found in the updates of a publisher.",
    "restarts": "New epochs of a publisher that was known before.",
    "replays": "Gaps closed by a replay.",
    "snapshots": "Registries loaded from a snapshot.",
    "duplicates": "Updates that were known already.",
    "malformed": "Messages that could not be read.",
    "foreign": "Messages for another model, dtype, page size, rank or format version.",
    "evicted_blocks": "Blocks forgotten because of max_blocks.",
    "protocol_errors": "Answers that did not fit what was asked.",
}
READER_GAUGES = {
    "blocks": "Blocks known of a publisher.",
    "bytes": "Memory of these blocks.",
    "live": "1 while a publisher is heard and nothing is missing.",
    "silence_seconds": "Seconds since the last message.",
    "delay_seconds": "Age of the last message when it came (clocks of two machines).",
    "lost_blocks": "Blocks that the publisher caches but could not tell.",
}
REGISTRY_COUNTERS = {
    "estimates": "Prompts estimated.",
    "estimated_tokens": "Tokens of these prompts that an instance was said to have.",
}


class MetricFamily:
    """Counters and gauges with the same labels.

    Args:
        labels: fixed labels; None exports nothing. Construct it after
            ``PROMETHEUS_MULTIPROC_DIR`` is set.
        more_labels: names of labels that each call gives.
    """

    def __init__(
        self,
        labels: Optional[Mapping[str, str]],
        *,
        counters: Mapping[str, str],
        gauges: Mapping[str, str],
        more_labels: tuple[str, ...] = (),
        prefix: str = "",
    ):
        self._fixed = labels
        self._counters: dict[str, object] = {}
        self._gauges: dict[str, object] = {}
        # Counted elsewhere; exported as what was added since the last call.
        self._exported: dict[tuple, float] = {}
        if labels is None:
            return
        from prometheus_client import Counter, Gauge

        names = [*labels, *more_labels]
        for name, text in counters.items():
            self._counters[name] = Counter(
                f"sglang:prefix_registry_{prefix}{name}_total", text, names
            )
        for name, text in gauges.items():
            self._gauges[name] = Gauge(
                f"sglang:prefix_registry_{prefix}{name}",
                text,
                names,
                multiprocess_mode="mostrecent",
            )

    def set(self, values: Mapping[str, float], **labels: str) -> None:
        """Export ``values``; those of counters are totals."""
        if self._fixed is None:
            return
        labels = {**self._fixed, **labels}
        for name, value in values.items():
            if name in self._gauges:
                self._gauges[name].labels(**labels).set(value)
                continue
            key = (name, *labels.values())
            added = value - self._exported.get(key, 0.0)
            if added < 0:
                added = value  # counted anew, as after a restart
            self._exported[key] = value
            self._counters[name].labels(**labels).inc(added)
