# SPDX-License-Identifier: Apache-2.0
"""The C++ operators against the PyTorch ones on random input, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

plain = pytest.importorskip("sglang.srt.platforms.cpu_reference_spec_plain")
cpu_ops = pytest.importorskip("sgl_kernel_ext.cpu_ops")
native = pytest.importorskip("sglang.srt.platforms.cpu_reference_spec_native")

BOTH = (plain, native)
INTEGERS = st.sampled_from([torch.int32, torch.int64])
SEEDS = st.integers(0, 2**32 - 1)


def test_they_are_what_the_server_uses():
    from sglang.srt.platforms import cpu_reference_spec_ops as used

    for name in ("follow_tree", "links_from_mask", "beam_to_tree", "extend_cache_locs"):
        assert getattr(used, name) is getattr(native, name)


def random_forest(gen, batch, n):
    """Parents of each node, some of which hang nowhere, as padding does."""
    forest = []
    for _ in range(batch):
        parents = [-1]
        for node in range(1, n):
            parents.append(int(torch.randint(-1, node, (1,), generator=gen)))
        forest.append(parents)
    return forest


def links_of(forest):
    shape = len(forest), len(forest[0])
    links = plain.TreeLinks(*(torch.zeros(shape, dtype=torch.int64) for _ in range(3)))
    for request, parents in enumerate(forest):
        links.write(request, parents)
    return links


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(1, 5), st.integers(1, 12), INTEGERS)
def test_links_from_any_mask(seed, batch, n, dtype):
    """Any matrix, not only that of a tree."""
    gen = torch.Generator().manual_seed(seed)
    mask = torch.rand(batch, n, n, generator=gen) < 0.4
    seq_lens = torch.randint(0, 99, (batch,), generator=gen).to(dtype)
    results = []
    for ops in BOTH:
        positions = torch.full((batch * n,), -7)
        links = plain.TreeLinks(*(torch.full((batch, n), -7) for _ in range(3)))
        ops.links_from_mask(mask, seq_lens, positions=positions, out=links)
        results.append([positions, *links])
    assert all(map(torch.equal, *results))


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.integers(1, 5), st.integers(1, 12), st.integers(1, 12), INTEGERS)
def test_walks_down_trees(seed, batch, n, depth, dtype):
    gen = torch.Generator().manual_seed(seed)
    links = links_of(random_forest(gen, batch, n))
    drafts = torch.randint(0, 3, (batch, n), generator=gen)
    wanted = torch.randint(0, 3, (batch, n), generator=gen).to(dtype)
    probs = torch.rand(batch, n, 3, generator=gen)
    draws = torch.rand(batch, n, generator=gen)
    for name, choice in (("follow_tree", (wanted,)), ("sample_tree", (probs, draws))):
        results = []
        for ops in BOTH:
            out = [
                torch.full((batch * n,), -7, dtype=dtype),
                torch.full((batch, depth), -7, dtype=dtype),
                torch.full((batch,), -7, dtype=dtype),
            ]
            getattr(ops, name)(
                links,
                drafts,
                *choice,
                predicts=out[0],
                accept_index=out[1],
                accepted_drafts=out[2],
            )
            results.append(out)
        assert all(map(torch.equal, *results)), name


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(1, 4), st.integers(1, 400), st.booleans())
def test_renormalised_rows(seed, rows, vocabulary, ties):
    gen = torch.Generator().manual_seed(seed)
    probs = torch.rand(rows, vocabulary, generator=gen)
    if ties:
        probs = (probs * 4).round() / 4 + 0.25
    probs /= probs.sum(-1, keepdim=True)
    top_k = torch.randint(1, vocabulary + 50, (rows,), generator=gen)
    top_p = torch.rand(rows, generator=gen)
    for name, limits in (("top_k_renorm", top_k), ("top_p_renorm", top_p)):
        expected, out = (getattr(ops, name)(probs, limits) for ops in BOTH)
        assert torch.equal(expected > 0, out > 0), name
        torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(1, 6), INTEGERS, INTEGERS)
def test_spans_of_slots(seed, batch, index, slot):
    gen = torch.Generator().manual_seed(seed)
    rows = torch.randperm(batch + 2, generator=gen)[:batch].to(index)
    starts = torch.randint(0, 10, (batch,), generator=gen).to(index)
    ends = starts + torch.randint(0, 8, (batch,), generator=gen).to(index)
    slots = torch.randint(0, 999, (int((ends - starts).sum()) + 3,), generator=gen).to(slot)
    tables = [torch.full((batch + 2, 24), -1, dtype=torch.int32) for _ in BOTH]
    for ops, table in zip(BOTH, tables, strict=True):
        ops.assign_req_to_token(table, rows, starts, ends, slots)
    assert torch.equal(*tables)
    read = [
        ops.extend_cache_locs(
            req_pool_indices=rows, req_to_token=tables[0], start_offset=starts, end_offset=ends
        )
        for ops in BOTH
    ]
    assert torch.equal(*read)
    assert read[0].dtype == read[1].dtype == torch.int64


@settings(max_examples=100, deadline=None)
@given(
    SEEDS,
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([1, 4, 16]),
    INTEGERS,
)
def test_slots_of_drafts(seed, batch, topk, steps, page_size, dtype):
    gen = torch.Generator().manual_seed(seed)
    table = torch.randint(0, 999, (batch + 1, 200), generator=gen).int()
    rows = torch.randperm(batch + 1, generator=gen)[:batch].to(dtype)
    seq_lens = torch.randint(1, 60, (batch,), generator=gen).to(dtype)
    width = topk * steps
    drafted, branches = [], []
    for ops in BOTH:
        out = torch.full((batch * width + 2,), -1, dtype=dtype)
        positions = torch.full((batch * topk,), -1, dtype=torch.int64)
        ops.draft_cache_locs(rows, table, seq_lens, out, width, positions)
        drafted.append([out, positions])
        branches.append(
            ops.branch_slots(
                table, rows, seq_lens.tolist(), topk=topk, num_steps=steps, page_size=page_size
            )
        )
    assert all(map(torch.equal, *drafted))
    assert torch.equal(*branches)


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(1, 5), st.integers(1, 6), INTEGERS)
def test_packing_of_what_was_accepted(seed, batch, width, dtype):
    gen = torch.Generator().manual_seed(seed)
    slots = torch.randint(0, 999, (batch * width,), generator=gen)
    counts = torch.randint(0, width + 1, (batch,), generator=gen).to(dtype)
    index = torch.randint(-1, batch * width, (batch, width), generator=gen).to(dtype)
    lengths = torch.randint(1, width + 1, (batch,), generator=gen).to(dtype)
    results = []
    for ops in BOTH:
        front, accepted = (torch.full((batch * width,), -1) for _ in range(2))
        bonus = torch.full((batch,), -1, dtype=dtype)
        ops.front_cache_locs(counts, slots, front)
        ops.accepted_cache_locs(index, slots, accepted)
        ops.bonus_tokens(slots, lengths, bonus, width)
        results.append([front, accepted, bonus])
    assert all(map(torch.equal, *results))


def test_views_with_strides_are_read_as_they_are():
    """Upstream hands columns and transposed views around."""
    table = torch.arange(80, dtype=torch.int32).view(4, 20)[:, ::2]
    rows = torch.tensor([[3, 9], [1, 9]])[:, 0]
    starts, ends = torch.tensor([1, 0]), torch.tensor([3, 2])
    for ops in BOTH:
        read = ops.extend_cache_locs(
            req_pool_indices=rows, req_to_token=table, start_offset=starts, end_offset=ends
        )
        assert read.tolist() == [62, 64, 20, 22]


@pytest.mark.parametrize(
    ("starts", "ends", "rows", "message"),
    [
        ([0], [9], [0], "tokens 0 to 9: not in a table of 2 requests of 8 tokens"),
        ([3], [2], [0], "tokens 3 to 2"),
        ([0], [1], [2], "request row 2"),
        ([0], [4], [0], "slots has 3 elements; 4 are needed"),
    ],
)
def test_spans_outside_the_table_are_refused_and_nothing_is_written(starts, ends, rows, message):
    table = torch.zeros(2, 8, dtype=torch.int32)
    with pytest.raises(ValueError, match=message):
        native.assign_req_to_token(
            table,
            torch.tensor(rows),
            torch.tensor(starts),
            torch.tensor(ends),
            torch.ones(3).long(),
        )
    assert not table.any()


def test_links_that_lead_back_are_refused():
    """A walk along them would not end."""
    links = links_of([[-1, 0, 1]])
    links.sibling[0, 1] = 1
    with pytest.raises(ValueError, match="leads from node 1 to 1"):
        native.follow_tree(
            links,
            torch.zeros(1, 3, dtype=torch.int64),
            torch.ones(1, 3, dtype=torch.int64),
            predicts=torch.zeros(3, dtype=torch.int64),
            accept_index=torch.zeros(1, 3, dtype=torch.int64),
            accepted_drafts=torch.zeros(1, dtype=torch.int64),
        )


def test_other_element_types_are_refused():
    with pytest.raises(ValueError, match="rows must hold int32 or int64"):
        native.assign_req_to_token(
            torch.zeros(2, 8, dtype=torch.int32),
            torch.zeros(1),
            torch.zeros(1).long(),
            torch.ones(1).long(),
            torch.ones(1).long(),
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k_lens": [20]}, "request 0: 2 of 20 tokens in row 1 do not fit the table"),
        ({"rows": [5]}, "in row 5"),
        ({"q_lens": [4]}, "request 0: 4 of 3 tokens"),
        ({"mask": torch.ones(3, dtype=torch.bool)}, "is not in the 3 cells"),
    ],
)
def test_attention_outside_the_table_is_refused(change, message):
    arguments = {"rows": [1], "q_lens": [2], "k_lens": [3], **change}
    if "mask" in arguments:
        arguments |= {
            "mask": arguments["mask"].numpy(),
            "mask_starts": [0],
            "mask_strides": [2],
        }
    with pytest.raises(ValueError, match=message):
        cpu_ops.RowAttention(torch.zeros(2, 8, dtype=torch.int32).numpy(), **arguments)


def test_attention_outside_the_pool_is_refused():
    plan = cpu_ops.RowAttention(torch.full((1, 4), 9, dtype=torch.int32).numpy(), [0], [1], [4])
    query, pool = torch.zeros(1, 2, 8), torch.zeros(9, 2, 8)
    with pytest.raises(ValueError, match="slot 9 is not in a pool of 9"):
        plan.run(query.numpy(), pool.numpy(), pool.numpy(), 1.0, query.clone().numpy(), 1)
