# SPDX-License-Identifier: Apache-2.0
"""Random scheduler histories on the real tree: our order equals its definition."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from typing import Any

import pytest
from scheduling_reference import Reference
from scheduling_world import World, world
from sglang.srt.mem_cache.cache_warming.hints import HintOrder
from sglang.srt.mem_cache.cache_warming.prefix_index import PrefixKey

CORES = ("rust", "python")
PROMPT_TOKENS = 160


class History:
    """Draws prompts that share prefixes, and steps through a random history."""

    def __init__(self, world: World, reference: Reference, seed: int):
        self.world = world
        self.reference = reference
        self.rng = random.Random(seed)
        self.finished: list[Any] = []
        self.finished_before_last_call: list[Any] = []
        self.stems = [self._fresh(self.rng.randint(8, PROMPT_TOKENS)) for _ in range(8)]

    def _fresh(self, count: int) -> list[int]:
        # A small alphabet: unrelated prompts share first tokens now and then.
        return [self.rng.randrange(6) for _ in range(count)]

    def prompt(self) -> list[int]:
        stem = self.rng.choice(self.stems)
        cut = self.rng.randint(1, len(stem))
        return stem[:cut] + self._fresh(self.rng.randint(1, 40))

    def arrive(self) -> None:
        fields: dict[str, Any] = {}
        if self.rng.random() < 0.3:
            fields["extra_key"] = self.rng.choice(["a", "b"])
        if self.rng.random() < 0.2:
            fields["cache_salt"] = "s"
        if self.rng.random() < 0.2:
            fields["lora_id"] = "adapter"
        if self.reference.priority_sign:
            fields["priority"] = self.rng.randint(0, 2)
        self.reference.entered(self.world.add(self.prompt(), **fields))

    def step(self) -> None:
        rng, world = self.rng, self.world
        kind = rng.choices(
            ("arrive", "serve", "insert", "evict", "abort", "retract", "first", "flush"),
            (30, 20, 10, 8, 4, 4, 2, 1),
        )[0]
        if kind == "arrive":
            for _ in range(rng.randint(1, 6)):
                self.arrive()
        elif kind == "serve":
            for req in world.waiting[: rng.randint(1, 3)]:
                world.serve(req)
                self.reference.left(req)
                self.finished.append(req)
        elif kind == "insert":
            # A request that ran meanwhile: checkpoints and answers of others.
            world.insert(self.prompt(), rng.choice([None, "a"]))
        elif kind == "evict":
            world.evict(rng.randint(1, 400))
        elif kind == "abort" and world.waiting:
            req = world.waiting.pop(rng.randrange(len(world.waiting)))
            self.reference.left(req)
        elif kind == "retract" and self.finished:
            req = self.finished.pop(rng.randrange(len(self.finished)))
            if req in self.finished_before_last_call:
                self.finished_before_last_call.remove(req)
            world.retract(req, self._fresh(rng.randint(1, 9)))
            self.reference.entered(req)
        elif kind == "first" and self.finished_before_last_call:
            req = self.finished_before_last_call.pop()
            self.finished.remove(req)
            world.waiting.insert(0, req)
            self.reference.entered(req, first=True)
        elif kind == "flush":
            world.flush()

    def hint(self) -> None:
        """Set, change or take back one of three hints, at any time."""
        name = self.rng.choice("pqr")
        hints = self.world.policy.prefix_order.hints
        if self.rng.random() < 0.3:
            hints.set(name, None)
            self.reference.hints.pop(name, None)
        else:
            if name in self.reference.hints:
                hints.set(name, None)
            extra_key = self.rng.choice([None, None, "a"])
            tokens = self.prompt()
            hints.set(name, PrefixKey(array("q", tokens), extra_key))
            self.reference.hints[name] = (extra_key, None, tokens)

    def call_and_compare(self) -> None:
        expected = [req.rid for req in self.reference.order()]
        got = [req.rid for req in self.world.call()]
        self.finished_before_last_call = list(self.finished)
        assert got == expected


def run(seed: int, steps: int, config: dict[str, Any], **settings: Any) -> World:
    hinted = settings.pop("hinted", False)
    reference_settings = {key: settings.pop(key) for key in ("priority_sign",) if key in settings}
    with world({"matches_per_pass": 1 << 20, **config}, **settings) as made:
        reference = Reference(
            made,
            config.get("aging", "off"),
            config.get("aging_limit", 0),
            config.get("aging_factor", 1.25),
            **reference_settings,
        )
        history = History(made, reference, seed)
        if hinted:
            made.policy.prefix_order.hints = HintOrder()
        for _ in range(steps):
            if hinted and history.rng.random() < 0.2:
                history.hint()
            for _ in range(history.rng.randint(0, 3)):
                history.step()
            history.call_and_compare()
        return made


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("page_size", (1, 4, 16))
@pytest.mark.parametrize("is_eagle", (False, True))
def test_random_histories(core: str, page_size: int, is_eagle: bool) -> None:
    counts: Counter[str] = Counter()
    # Waiting requests end on few of the larger pages, so evictions touch them less often.
    for seed in range(4 if page_size == 16 else 2):
        made = run(seed, 80, {}, core=core, page_size=page_size, capacity=2048, is_eagle=is_eagle)
        counts.update(made.policy.prefix_order.watch.counts)
    assert counts["insert"] and counts["evict"], "no history changed a match"


@pytest.mark.parametrize(
    ("eviction", "eviction_config"),
    (
        ("adaptive", {"block_tokens": 4, "trim_tokens": 4}),
        ("adaptive", {"trim": False}),
        ("adaptive", {"mode": "weighted"}),
        ("lru", {"trim": True}),
    ),
)
@pytest.mark.parametrize(("page_size", "is_eagle"), ((1, False), (4, True)))
def test_random_histories_with_eviction_in_place(
    eviction: str, eviction_config: dict[str, Any], page_size: int, is_eagle: bool
) -> None:
    counts: Counter[str] = Counter()
    for seed in range(2):
        made = run(
            seed,
            80,
            {},
            core="python",
            page_size=page_size,
            capacity=2048,
            is_eagle=is_eagle,
            eviction=eviction,
            eviction_config=eviction_config,
        )
        counts.update(made.policy.prefix_order.watch.counts)
    assert counts["insert"] and counts["evict"], "no history changed a match"
    assert not counts["internal"], "all matches counted as stale"


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(
    "config",
    (
        {"aging": "tokens"},
        {"aging": "tokens", "aging_limit": 200, "aging_factor": 0.25},
        {"aging": "tokens", "aging_factor": 1},
        {"aging": "passes", "aging_limit": 5},
        {"aging": "passes", "aging_limit": 0},
    ),
)
def test_random_histories_with_aging(core: str, config: dict[str, Any]) -> None:
    for seed in range(2):
        run(seed, 80, config, core=core, capacity=2048)


@pytest.mark.parametrize("core", CORES)
def test_random_histories_with_priorities(core: str) -> None:
    for seed in range(2):
        run(
            seed,
            80,
            {"aging": "passes", "aging_limit": 9},
            core=core,
            policy="fcfs",
            priorities=True,
            priority_sign=-1,
            capacity=2048,
        )


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("config", ({}, {"aging": "tokens"}))
def test_random_histories_with_hints(core: str, config: dict[str, Any]) -> None:
    """The order counts a hinted prefix like a cached one."""
    for seed in range(3):
        run(seed, 80, config, core=core, capacity=2048, hinted=True)


def test_matches_only_what_can_have_changed() -> None:
    """Thousands waiting, a change touches a few: few are matched again."""
    with world({"matches_per_pass": 1 << 20}, capacity=1 << 16) as made:
        for family in range(64):
            for member in range(32):
                made.add([family] * 64 + [1000 + member] * 8)
        made.call()
        order = made.policy.prefix_order
        assert order.num_matches == 64 * 32
        made.call()
        assert order.num_matches == 64 * 32, "nothing changed, something was matched"
        made.serve(made.waiting[0])
        made.call()
        # The siblings of the one that was served, and nobody else.
        assert order.num_matches == 64 * 32 + 31


@pytest.mark.parametrize("trim", (True, False))
def test_eviction_in_place_makes_only_its_own_matches_stale(trim: bool) -> None:
    with world(
        {"matches_per_pass": 1 << 20},
        core="python",
        capacity=1 << 12,
        eviction="adaptive",
        eviction_config={"trim": trim, "trim_tokens": 16},
    ) as made:
        for family in range(16):
            made.insert([family] * 64)
            for member in range(8):
                made.add([family] * 64 + [1000 + member] * 8)
        made.call()
        order = made.policy.prefix_order
        before = order.num_matches
        made.evict(16)
        cached = [made.matched(req)[0] for req in made.waiting]
        assert cached.count(48 if trim else 0) == 8 and cached.count(64) == 120
        made.call()
        assert order.num_matches == before + 8, "the family of the one evicted leaf"
        shortened = made.waiting[-8:]
        assert len({req.origin_input_ids[0] for req in shortened}) == 1
        assert all(req.num_matched_prefix_tokens < 64 for req in shortened)
