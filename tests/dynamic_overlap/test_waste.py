# SPDX-License-Identifier: Apache-2.0
"""When a computed row that nobody wants counts: only where somebody waits for its place."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from sglang.srt.managers.dynamic_overlap.controller import DynamicOverlap

NO_QUEUE = SimpleNamespace(queue=[], retracted_queue=[])


class Timer:
    """Gives one record and keeps what is handed on."""

    def __init__(self):
        self.record, self.seen = SimpleNamespace(rows=4, waste=0.0), None

    def process_ended(self):
        return self.record

    def hand_on(self, record):
        self.seen = record.waste


@pytest.mark.parametrize(
    ("wasted", "waiting", "held", "counted"),
    [
        (1, [], None, 0.0),
        (1, ["request"], None, 0.25),
        (4, [], None, 1.0),
        (1, [], NO_QUEUE, 0.0),
        (1, [], SimpleNamespace(queue=["request"], retracted_queue=[]), 0.25),
        (1, [], SimpleNamespace(queue=[], retracted_queue=["request"]), 0.25),
        (0, ["request"], None, 0.0),
    ],
)
def test_waste_counts_where_a_request_waits(wasted, waiting, held, counted):
    scheduler = SimpleNamespace(waiting_queue=waiting, disagg_decode_prealloc_queue=held)
    timer = Timer()
    overlap = DynamicOverlap(scheduler, SimpleNamespace(proposals={}), None, timer)
    overlap.process_ended(SimpleNamespace(wasted_rows=wasted, reqs=[None] * 4))
    assert timer.seen == counted
