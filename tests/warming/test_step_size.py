# SPDX-License-Identifier: Apache-2.0
"""Steps as long as a real request may be held up, on engines of any speed."""

from __future__ import annotations

import random

import pytest
from sglang.srt.mem_cache.cache_warming.step_size import LEAST_TOKENS, START_TOKENS, StepSize
from warming_world import World, prompt

LIMIT = 512


def settled(seconds_of, page_size=1, target_s=0.05, limit=LIMIT):
    size = StepSize(limit, page_size, target_s)
    for _ in range(200):
        size.took(size.tokens, seconds_of(size.tokens))
    return size


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_steps_take_the_time_asked_for(page_size):
    rng = random.Random(page_size)
    for _ in range(200):
        per_pass, per_token = 10 ** rng.uniform(-4, -1.3), 10 ** rng.uniform(-6, -2)

        def seconds_of(tokens, per_pass=per_pass, per_token=per_token):
            return per_pass + per_token * tokens

        size = settled(seconds_of, page_size)
        assert size.tokens % page_size == 0
        least = max(LEAST_TOKENS // page_size * page_size, page_size)
        assert least <= size.tokens <= LIMIT
        took = seconds_of(size.tokens)
        assert took <= 0.051 or size.tokens == least
        # A page more would take too long if time were in proportion to tokens.
        more = size.tokens + page_size
        assert took / size.tokens * more > 0.0499 or more > LIMIT


def test_one_slow_step_does_not_stop_warming():
    size = settled(lambda tokens: tokens * 1e-5)
    assert size.tokens == LIMIT
    size.took(LIMIT, 3.0)
    assert size.tokens == LIMIT // 2
    size.took(LIMIT // 2, 0.003)
    assert size.tokens == LIMIT


def test_the_end_of_a_prompt_says_little():
    size = settled(lambda tokens: tokens * 1e-3)
    before = size.tokens
    size.took(3, 0.004)
    assert size.tokens == before
    size.took(10, 0.2)
    assert size.tokens == LEAST_TOKENS, "but the device became slower"


@pytest.mark.parametrize(("limit", "page_size"), [(5, 1), (16, 16), (48, 16)])
def test_the_limit_may_be_below_the_least(limit, page_size):
    assert settled(lambda tokens: 1.0, page_size, limit=limit).tokens <= limit
    assert settled(lambda tokens: 1e-9, page_size, limit=limit).tokens == limit


def test_a_fixed_size_stays():
    size = settled(lambda tokens: 9.0, target_s=None)
    assert size.tokens == LIMIT


def test_the_planner_follows_the_engines_speed(tmp_path):
    world = World(
        tmp_path,
        [prompt("a", 0, 1500)],
        capacity=2048,
        chunk=LIMIT,
        step_s=0.1,
        seconds=lambda tokens: tokens / 2000,
    )
    world.idle()
    ends = [len(step.tokens) for step in world.prefills()]
    sizes = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    assert sizes[0] == START_TOKENS
    assert sizes[1] == 2 * START_TOKENS
    assert set(sizes[2:-1]) == {200}
    assert world.planner.describe()["chunk_tokens"] == 200
