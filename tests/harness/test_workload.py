# SPDX-License-Identifier: Apache-2.0
"""The seeded chat traffic."""

from __future__ import annotations

import itertools

import pytest

from harness import Conversations

TRAFFIC = Conversations(agents=5, turns=(2, 4), visitors=6, scans=2)


def test_equal_seeds_give_equal_requests_and_other_seeds_others():
    assert TRAFFIC.requests(3) == TRAFFIC.requests(3)
    assert TRAFFIC.requests(3) != TRAFFIC.requests(4)


def test_arrivals_ascend_and_every_client_is_there():
    requests = TRAFFIC.requests()
    arrivals = [request.arrival_s for request in requests]
    assert arrivals == sorted(arrivals) and arrivals[0] >= 0
    names = {request.session for request in requests}
    assert {name.split("-")[0] for name in names} == {"agent", "visitor", "scan"}
    assert len(names) == 13


def test_each_turn_repeats_the_history_before_it():
    """That is what makes a prefix cache useful, and what a wrong one would spoil."""
    by_session: dict[str, list] = {}
    for request in TRAFFIC.requests():
        by_session.setdefault(request.session, []).append(request.prompt)
    lengths = {len(turns) for name, turns in by_session.items() if name.startswith("agent")}
    assert lengths <= {2, 3, 4} and max(lengths) > 1
    for turns in by_session.values():
        for before, after in itertools.pairwise(turns):
            assert after[: len(before)] == before
            assert [message["role"] for message in after[len(before) :]] == ["assistant", "user"]


def test_system_prompts_are_shared():
    prompts = {request.prompt[0]["content"] for request in TRAFFIC.requests()}
    assert 1 < len(prompts) <= TRAFFIC.system_prompts


@pytest.mark.parametrize("wrong", [{"turns": (3, 2)}, {"scan_words": (0, 5)}, {"gap_spread": 1}])
def test_ranges_are_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Conversations(**wrong)
