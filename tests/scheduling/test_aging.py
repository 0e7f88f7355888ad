# SPDX-License-Identifier: Apache-2.0
"""Cold requests starve under steady hot arrivals; aging bounds their wait."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from scheduling_world import World, world

HOT = list(range(100))


def passes_until_served(
    made: World, rounds: int, arrivals: int = 1, served: int = 1
) -> Optional[int]:
    """Rounds until the cold request runs; each round brings and serves hot ones."""
    made.insert(HOT)
    cold = made.add([7000 + i for i in range(60)])
    for number in range(rounds):
        for i in range(arrivals):
            made.add(HOT + [9000 + number * 10 + i])
        for req in list(made.call())[:served]:
            if req is cold:
                return number
            made.serve(req)
    return None


@pytest.mark.parametrize("core", ("rust", "python"))
def test_without_aging_cold_requests_starve(core: str) -> None:
    with world(None, core=core) as made:
        assert passes_until_served(made, 100) is None, "upstream's lpm does starve"
    with world({}, core=core) as made:
        assert passes_until_served(made, 300) is None, "the longest prefix goes first"


@pytest.mark.parametrize("core", ("rust", "python"))
@pytest.mark.parametrize("limit", (0, 1, 20))
def test_passes_bound_the_wait(core: str, limit: int) -> None:
    config = {"aging": "passes", "aging_limit": limit}
    with world(config, core=core) as made:
        assert passes_until_served(made, 100) == limit


def test_tokens_bound_the_wait() -> None:
    """Each hot request computes one token; the cold one waits for 25 of them."""
    config = {"aging": "tokens", "aging_limit": 25, "aging_factor": 0}
    with world(config) as made:
        assert passes_until_served(made, 100) == 25


def test_the_fcfs_wait_scales_the_bound() -> None:
    """Ten requests of one token were ahead on arrival: fcfs makes it wait ten."""
    for factor, expected in ((0, 10), (1, 10), (2, 20), (3, 30)):
        with world({"aging": "tokens", "aging_factor": factor}) as made:
            made.insert(HOT)
            for i in range(10):
                made.add(HOT + [5000 + i])
            made.call()
            assert passes_until_served(made, 100) == expected


def test_what_a_sibling_cost_counts_not_its_length() -> None:
    """Nine siblings of a cold prompt cost one token each once it is cached."""
    with world({"aging": "tokens", "aging_factor": 1}) as made:
        stem = list(range(3000, 3099))
        siblings = [made.add([*stem, 4000 + n]) for n in range(10)]
        cold = made.add(list(range(7000, 7050)))
        made.call()
        assert made.waiting[0] is siblings[0]
        served = []
        while cold in made.waiting:
            made.add(stem + [9000 + len(served)])
            made.call()
            served.append(made.waiting[0])
            made.serve(made.waiting[0])
        assert served == [*siblings, cold], "109 tokens after its arrival, as fcfs would"


def test_many_aged_requests_run_in_order_of_their_limit() -> None:
    with world({"aging": "passes", "aging_limit": 3}) as made:
        made.insert(HOT)
        cold = [made.add([7000 + 100 * n + i for i in range(60)]) for n in range(5)]
        for _ in range(6):
            made.add(HOT + [8000 + len(made.waiting)])
            made.call()
        assert made.waiting[:5] == cold
        assert all(req.prefix_len > 0 for req in made.waiting[5:])


def test_aged_siblings_still_share() -> None:
    """Of aged requests with one cold prefix only the first runs cold."""
    with world({"aging": "passes", "aging_limit": 1}) as made:
        stem = list(range(3000, 3064))
        siblings = [made.add([*stem, 4000 + n]) for n in range(3)]
        made.insert(HOT)
        made.add(HOT + [1])
        for _ in range(3):
            made.call()
        assert made.waiting[0] is siblings[0]
        assert made.waiting[-2:] == siblings[1:]
        made.serve(siblings[0])
        assert made.call()[:2] == siblings[1:], "cached now, and aged: they go first"


def test_a_retracted_request_starts_a_new_stay() -> None:
    config: dict[str, Any] = {"aging": "passes", "aging_limit": 4}
    with world(config) as made:
        made.insert(HOT)
        cold = made.add([7000 + i for i in range(60)])
        for _ in range(3):
            made.call()
        made.retract(cold, [1, 2])
        hot = made.add(HOT + [1])
        assert made.call()[0] is hot, "its old stay would age it by now"
        for _ in range(4):
            made.call()
        assert made.waiting[0] is cold
