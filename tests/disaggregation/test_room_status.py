# SPDX-License-Identifier: Apache-2.0
"""A prefill instance's room keeps the higher status whichever thread opens it."""

from __future__ import annotations

from types import MethodType, SimpleNamespace

import pytest

pytest.importorskip("torch")
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.conn import CommonKVManager

ROOM = 7


class Interrupted(dict):
    """Lets another thread's update run right after the first look at a room."""

    other = None

    def get(self, key, default=None):
        seen = super().get(key, default)
        other, self.other = self.other, None
        if other is not None:
            other()
        return seen


def manager() -> SimpleNamespace:
    """What ``update_status`` uses of a manager."""
    made = SimpleNamespace(
        request_status=Interrupted(),
        deferred_bootstrap=None,
        _deferred_ack_targets={},
        _deferred_ack_poisoned_rooms=set(),
        _staging_outstanding={},
    )
    made.update_status = MethodType(CommonKVManager.update_status, made)
    return made


@pytest.mark.parametrize(
    ("interrupted", "between"),
    [
        (KVPoll.Bootstrapping, KVPoll.WaitingForInput),
        (KVPoll.WaitingForInput, KVPoll.Bootstrapping),
        (KVPoll.WaitingForInput, KVPoll.WaitingForInput),
    ],
)
def test_both_openers_leave_the_higher_status(interrupted, between):
    made = manager()
    made.request_status.other = lambda: made.update_status(ROOM, between)
    made.update_status(ROOM, interrupted)
    assert made.request_status == {ROOM: KVPoll.WaitingForInput}


def test_an_abort_between_is_kept():
    made = manager()

    def opened_and_failed():
        made.update_status(ROOM, KVPoll.WaitingForInput)
        made.update_status(ROOM, KVPoll.Failed)

    made.request_status.other = opened_and_failed
    made.update_status(ROOM, KVPoll.Bootstrapping)
    assert made.request_status == {ROOM: KVPoll.Failed}


def test_only_an_opening_status_makes_a_room():
    made = manager()
    made.update_status(ROOM, KVPoll.Success)
    assert made.request_status == {}
