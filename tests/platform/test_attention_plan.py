# SPDX-License-Identifier: Apache-2.0
"""Attention, in PyTorch and in C++, against attention written out per query row."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

backend = pytest.importorskip("sglang.srt.layers.attention.cpu_reference_backend")

blocks = pytest.importorskip("sglang.srt.layers.attention.cpu_reference_blocks")

POOL = 997
CONTEXT = 192


@pytest.fixture(params=["blocks", "native"], scope="module")
def planner(request):
    """A backend without a server, with and without the compiled operator."""
    made = backend.CpuReferenceAttnBackend.__new__(backend.CpuReferenceAttnBackend)
    made._kernels = None
    if request.param == "native":
        made._kernels = pytest.importorskip("sgl_kernel_ext.cpu_ops")
        made.most_compiled_rows = CONTEXT
    return made


def rowwise(query, keys, values, seen, scale):
    """softmax(q k) v for one request, a row and a head at a time.

    Args:
        query: ``[q_len, q_heads, head_dim]``; keys ``[k_len, kv_heads, ...]``.
        seen: ``seen[row]`` is the list of key rows that query row sees.
    """
    q_len, q_heads, _ = query.shape
    fold = q_heads // keys.shape[1]
    out = torch.empty(q_len, q_heads, values.shape[2], dtype=torch.float64)
    for row in range(q_len):
        for head in range(q_heads):
            k = keys[seen[row], head // fold].double()
            v = values[seen[row], head // fold].double()
            weights = torch.softmax(k @ query[row, head].double() * scale, dim=0)
            out[row, head] = weights @ v
    return out


@st.composite
def batches(draw):
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    fold = draw(st.sampled_from([1, 2, 3]))
    n = draw(st.integers(1, 5))
    same = draw(st.booleans())
    width = draw(st.integers(1, 5))
    # Up to several of the tiles of keys and the units of rows that the C++ operator works in.
    some = st.one_of(st.integers(1, 6), st.integers(1, 80))
    q_lens = [width if same else draw(some) for _ in range(n)]
    prefix = [draw(st.one_of(st.integers(0, 12), st.integers(0, 100))) for _ in range(n)]
    seed = draw(st.integers(0, 2**16))
    # Two sizes have code of their own, and the sizes of keys and values may differ.
    dims = draw(st.sampled_from([(8, 6), (64, 64), (128, 128)]))
    return kv_heads, fold, q_lens, prefix, seed, dims


def make_pool(kv_heads, q_lens, prefix, seed, dims):
    """Scattered slots for every request, as an allocator leaves them."""
    gen = torch.Generator().manual_seed(seed)
    k_lens = [p + q for p, q in zip(prefix, q_lens)]
    slots = torch.randperm(POOL - 1, generator=gen) + 1
    req_to_token = torch.zeros(len(q_lens) + 2, CONTEXT, dtype=torch.int32)
    rows = torch.randperm(len(q_lens) + 2, generator=gen)[: len(q_lens)]
    start = 0
    for row, k_len in zip(rows, k_lens):
        req_to_token[row, :k_len] = slots[start : start + k_len].int()
        start += k_len
    keys = torch.randn(POOL, kv_heads, dims[0], generator=gen)
    values = torch.randn(POOL, kv_heads, dims[1], generator=gen)
    # Slot 0 is where padding is looked up: poison it, so that a row that sees
    # padding cannot pass.
    keys[0], values[0] = 1e3, 1e6
    return gen, k_lens, req_to_token, rows, keys, values


def run(planner, fold, q_lens, k_lens, req_to_token, rows, keys, values, gen, **how):
    query = torch.randn(sum(q_lens), keys.shape[1] * fold, keys.shape[2], generator=gen)
    plan = planner(
        q_lens=q_lens,
        k_lens=k_lens,
        req_to_token=req_to_token,
        req_pool_indices=rows,
        **how,
    )
    out = torch.full((*query.shape[:2], values.shape[2]), math.nan)
    backend.attend(query, keys, values, plan, scale=1 / math.sqrt(keys.shape[2]), out=out)
    return query, out


def compare(query, out, q_lens, k_lens, req_to_token, rows, keys, values, seen_of):
    start = 0
    for i, (q_len, k_len) in enumerate(zip(q_lens, k_lens)):
        slots = req_to_token[rows[i], :k_len].long()
        expected = rowwise(
            query[start : start + q_len],
            keys[slots],
            values[slots],
            [seen_of(i, row) for row in range(q_len)],
            1 / math.sqrt(keys.shape[2]),
        )
        torch.testing.assert_close(
            out[start : start + q_len].double(), expected, atol=1e-5, rtol=1e-5
        )
        start += q_len


@settings(max_examples=50, deadline=None)
@given(batches())
def test_causal_extend_and_decode(planner, batch):
    kv_heads, fold, q_lens, prefix, seed, dims = batch
    gen, k_lens, table, rows, keys, values = make_pool(kv_heads, q_lens, prefix, seed, dims)
    query, out = run(planner.plan, fold, q_lens, k_lens, table, rows, keys, values, gen)
    compare(
        query,
        out,
        q_lens,
        k_lens,
        table,
        rows,
        keys,
        values,
        lambda i, row: list(range(prefix[i] + row + 1)),
    )


@settings(max_examples=30, deadline=None)
@given(batches())
def test_bidirectional(batch):
    kv_heads, fold, q_lens, prefix, seed, dims = batch
    gen, k_lens, table, rows, keys, values = make_pool(kv_heads, q_lens, prefix, seed, dims)
    plan = functools.partial(blocks.plan_blocks, causal=False)
    query, out = run(plan, fold, q_lens, k_lens, table, rows, keys, values, gen)
    compare(
        query,
        out,
        q_lens,
        k_lens,
        table,
        rows,
        keys,
        values,
        lambda i, row: list(range(k_lens[i])),
    )


@pytest.mark.parametrize("layout", ["squares", "full"])
@settings(max_examples=25, deadline=None)
@given(batches())
def test_draft_trees(planner, layout, batch):
    kv_heads, fold, q_lens, prefix, seed, dims = batch
    width = q_lens[0]  # upstream's drafts are equally wide
    q_lens = [width] * len(q_lens)
    gen, k_lens, table, rows, keys, values = make_pool(kv_heads, q_lens, prefix, seed, dims)
    tails, paths = [], []
    for q_len in q_lens:
        # A random tree: every node but the first hangs below an earlier one.
        path = [[0]]
        for node in range(1, q_len):
            parent = int(torch.randint(0, node, (1,), generator=gen))
            path.append(path[parent] + [node])
        tail = torch.zeros(q_len, q_len, dtype=torch.bool)
        for node, ancestors in enumerate(path):
            tail[node, ancestors] = True
        tails.append(tail)
        paths.append(path)
    if layout == "squares":
        flat = torch.cat([tail.flatten() for tail in tails])
    else:
        seen = [torch.ones(width, length, dtype=torch.bool) for length in prefix]
        flat = torch.cat([torch.cat(pair, 1).flatten() for pair in zip(seen, tails)])
    tree = backend.TreeMask.locate(flat, prefix, width)
    query, out = run(planner.plan, fold, q_lens, k_lens, table, rows, keys, values, gen, tree=tree)
    compare(
        query,
        out,
        q_lens,
        k_lens,
        table,
        rows,
        keys,
        values,
        lambda i, row: list(range(prefix[i])) + [prefix[i] + x for x in paths[i][row]],
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 500)), min_size=1, max_size=40))
def test_groups_partition_and_bound_the_padding(lens):
    q_lens = [q for q, _ in lens]
    k_lens = [k for _, k in lens]
    groups = blocks.group_by_length(q_lens, k_lens)
    assert sorted(i for g in groups for i in g) == [i for i, q in enumerate(q_lens) if q > 0]
    for group in groups:
        assert len({q_lens[i] for i in group}) == 1
        longest = max(k_lens[i] for i in group)
        assert k_lens[group[0]] == longest
        assert longest * len(group) <= 1.5 * sum(k_lens[i] for i in group)
