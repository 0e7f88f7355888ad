# SPDX-License-Identifier: Apache-2.0
"""What a step reserves at the context's end stays inside the request's own row."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

sizing = pytest.importorskip("sglang.srt.mem_cache.allocation_sizing")

CONTEXT = 200


@pytest.fixture
def configured(monkeypatch):
    """``configured(page, algorithm, steps, topk, tokens)`` stands for the server's arguments."""

    def set_up(page, algorithm, steps, topk, tokens):
        spec = SimpleNamespace(
            speculative_algorithm=algorithm,
            speculative_num_steps=steps,
            speculative_eagle_topk=topk,
        )
        for name, value in {
            "get_spec": spec,
            "get_schedule": SimpleNamespace(page_size=page),
            "get_parallel": SimpleNamespace(attn_dcp_size=1),
            "max_speculative_num_draft_tokens": tokens,
        }.items():
            monkeypatch.setattr(sizing, name, lambda value=value: value)

    return set_up


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize(
    ("algorithm", "steps", "topk", "tokens"),
    [("NGRAM", None, None, 8), ("STANDALONE", 3, 1, 4), ("EAGLE", 3, 2, 6), ("EAGLE", 6, 4, 8)],
)
def test_reserved_slots_fit_the_row(configured, page, algorithm, steps, topk, tokens):
    configured(page, algorithm, steps, topk, tokens)
    width = CONTEXT + sizing.get_req_to_token_extra_context_len()
    reserve = sizing.get_alloc_reserve_per_decode()
    for committed in range(CONTEXT - 20, CONTEXT + 1):
        kv = SimpleNamespace(kv_allocated_len=committed, kv_committed_len=committed)
        _, (end,), _ = sizing.page_aligned_decode_alloc_lens(
            [SimpleNamespace(kv=kv)], reserve=reserve, page_size=page
        )
        assert end <= width, committed


def test_without_speculation_rows_are_upstreams(configured):
    configured(16, None, None, None, None)
    assert sizing.get_req_to_token_extra_context_len() == 4
