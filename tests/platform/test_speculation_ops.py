# SPDX-License-Identifier: Apache-2.0
"""The operators of speculation, in PyTorch and in C++, against definitions written out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

plain = pytest.importorskip("sglang.srt.platforms.cpu_reference_spec_plain")
sampling = pytest.importorskip("sglang.srt.platforms.cpu_reference_spec_sampling")


@pytest.fixture(params=["plain", "native"], scope="module")
def ops(request):
    """Both implementations; the compiled one is skipped where it is not installed."""
    if request.param == "plain":
        return plain
    pytest.importorskip("sgl_kernel_ext.cpu_ops")
    return pytest.importorskip("sglang.srt.platforms.cpu_reference_spec_native")


@st.composite
def trees(draw, max_nodes=9):
    """A batch of trees of equal size as parent lists (node 0 is the root)."""
    n = draw(st.integers(1, max_nodes))
    batch = draw(st.integers(1, 4))
    return [[-1] + [draw(st.integers(0, node - 1)) for node in range(1, n)] for _ in range(batch)]


def path_to(parents, node):
    path = [node]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]


def children_by_links(child, sibling, node):
    found, at = [], int(child[node])
    while at != -1:
        found.append(at)
        at = int(sibling[at])
    return found


def empty_links(batch, n):
    return plain.TreeLinks(*(torch.full((batch, n), -7) for _ in range(3)))


def mask_of(forest):
    n = len(forest[0])
    mask = torch.zeros(len(forest), n, n, dtype=torch.bool)
    for b, parents in enumerate(forest):
        for node in range(n):
            mask[b, node, path_to(parents, node)] = True
    return mask


@settings(max_examples=60, deadline=None)
@given(trees(), st.integers(0, 50))
def test_links_and_positions_from_a_mask(ops, forest, length):
    n = len(forest[0])
    seq_lens = torch.arange(len(forest)) + length
    positions = torch.full((len(forest) * n,), -7)
    links = empty_links(len(forest), n)
    ops.links_from_mask(mask_of(forest), seq_lens, positions=positions, out=links)
    for b, parents in enumerate(forest):
        for node in range(n):
            assert positions[b * n + node] == length + b + len(path_to(parents, node)) - 1
            assert links.row[b, node] == b * n + node
            assert children_by_links(links.child[b], links.sibling[b], node) == [
                k for k in range(n) if parents[k] == node
            ]


def test_padding_nodes_hang_nowhere(ops):
    """Upstream pads a draft with nodes that see themselves alone."""
    mask = mask_of([[-1, 0, 1, -1, -1]])
    links, positions = empty_links(1, 5), torch.zeros(5, dtype=torch.int64)
    ops.links_from_mask(mask, torch.tensor([10]), positions=positions, out=links)
    assert links.child.tolist() == [[1, 2, -1, -1, -1]]
    assert links.sibling.tolist() == [[-1] * 5]
    assert positions.tolist() == [10, 11, 12, 10, 10]


@st.composite
def beams(draw):
    """What EAGLE's beam search leaves: per level the expanded tokens, then the chosen ones."""
    topk = draw(st.integers(1, 3))
    steps = draw(st.integers(1, 4))
    total = topk + (steps - 1) * topk * topk
    # Expanded tokens: the root, then topk of each level (levels are topk, topk^2, topk^2 ...).
    expanded, level_start = [-1], 0
    parent_of = dict.fromkeys(range(topk))
    for step in range(steps - 1):
        size = topk if step == 0 else topk * topk
        picked = draw(
            st.lists(
                st.integers(level_start, level_start + size - 1),
                min_size=topk,
                max_size=topk,
                unique=True,
            )
        )
        first = len(expanded)
        expanded += picked
        level_start += size
        for j, index in enumerate(picked, start=first):
            for k in range(topk):
                parent_of[topk * j + k] = index
    # Choose tokens whose ancestors are chosen as well.
    wish = draw(st.sets(st.integers(0, total - 1), min_size=1, max_size=6))
    chosen = set()
    for index in wish:
        while index is not None:
            chosen.add(index)
            index = parent_of[index]
    return topk, expanded, sorted(chosen), parent_of


@settings(max_examples=60, deadline=None)
@given(beams(), st.integers(0, 9), st.booleans())
def test_a_beam_becomes_a_tree(ops, beam, length, full_mask):
    topk, expanded, chosen, parent_of = beam
    n = len(chosen) + 1
    node_of = {index: node for node, index in enumerate(chosen, start=1)}
    parents = [-1] + [
        0 if parent_of[index] is None else node_of[parent_of[index]] for index in chosen
    ]
    batch = 2
    seq_lens = torch.tensor([length, length + 3])
    columns = [x + n if full_mask else n for x in seq_lens.tolist()]
    mask = torch.ones(sum(n * c for c in columns), dtype=torch.bool)
    links, positions = empty_links(batch, n), torch.zeros(batch * n, dtype=torch.int64)
    ops.beam_to_tree(
        torch.tensor([chosen] * batch),
        torch.tensor([expanded] * batch),
        seq_lens,
        topk=topk,
        positions=positions,
        mask=mask,
        full_mask=full_mask,
        out=links,
    )
    start = 0
    for b in range(batch):
        cells = mask[start : start + n * columns[b]].view(n, columns[b])
        start += n * columns[b]
        assert cells[:, :-n].all()
        for node in range(n):
            path = path_to(parents, node)
            assert cells[node, -n:].nonzero().flatten().tolist() == path
            assert positions[b * n + node] == seq_lens[b] + len(path) - 1
            assert children_by_links(links.child[b], links.sibling[b], node) == [
                k for k in range(n) if parents[k] == node
            ]


def test_a_node_whose_parent_was_not_chosen_hangs_nowhere(ops):
    # Beam index 2 descends from index 0, with which it ties when its probability is 1; so does 4,
    # which descends from 2.
    links = empty_links(1, 4)
    positions, mask = torch.zeros(4, dtype=torch.int64), torch.ones(16, dtype=torch.bool)
    ops.beam_to_tree(
        torch.tensor([[1, 2, 4]]),
        torch.tensor([[-1, 0, 2]]),
        torch.tensor([4]),
        topk=2,
        positions=positions,
        mask=mask,
        full_mask=False,
        out=links,
    )
    assert children_by_links(links.child[0], links.sibling[0], 0) == [1]
    assert children_by_links(links.child[0], links.sibling[0], 1) == []
    assert children_by_links(links.child[0], links.sibling[0], 2) == [3]
    assert positions.tolist() == [4, 5, 5, 6]
    expected = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
    assert mask.view(4, 4).int().tolist() == expected


@settings(max_examples=100, deadline=None)
@given(trees(), st.integers(0, 2**16), st.integers(1, 9))
def test_greedy_verification_follows_the_target(ops, forest, seed, depth):
    gen = torch.Generator().manual_seed(seed)
    batch, n = len(forest), len(forest[0])
    drafts = torch.randint(0, 3, (batch, n), generator=gen)
    wanted = torch.randint(0, 3, (batch, n), generator=gen)
    links = empty_links(batch, n)
    for b, parents in enumerate(forest):
        links.write(b, parents)
    predicts = torch.full((batch * n,), -1, dtype=torch.int32)
    accept_index = torch.full((batch, depth), -1, dtype=torch.int32)
    accepted = torch.zeros(batch, dtype=torch.int32)
    ops.follow_tree(
        links,
        drafts,
        wanted,
        predicts=predicts,
        accept_index=accept_index,
        accepted_drafts=accepted,
    )
    for b, parents in enumerate(forest):
        path = [0]
        while len(path) < depth:
            fits = [
                k
                for k in range(n)
                if parents[k] == path[-1] and drafts[b, k] == wanted[b, path[-1]]
            ]
            if not fits:
                break
            path.append(fits[0])
        row = accept_index[b].tolist()
        assert row == [b * n + x for x in path] + [-1] * (depth - len(path))
        assert accepted[b] == len(path) - 1
        assert [int(predicts[b * n + x]) for x in path] == wanted[b, path].tolist()
        others = set(range(n)) - set(path)
        assert all(predicts[b * n + x] == -1 for x in others)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), min_size=1, max_size=5),
    st.integers(0, 2**16),
)
def test_slots_written_are_the_slots_read(ops, spans, seed):
    gen = torch.Generator().manual_seed(seed)
    table = torch.zeros(len(spans) + 1, 32, dtype=torch.int32)
    rows = torch.randperm(len(spans) + 1, generator=gen)[: len(spans)]
    starts = torch.tensor([s for s, _ in spans])
    ends = starts + torch.tensor([k for _, k in spans])
    slots = torch.randperm(500, generator=gen)[: int((ends - starts).sum())]
    ops.assign_req_to_token(table, rows, starts, ends, slots)
    assert int((table != 0).sum()) == int((slots != 0).sum())
    read = ops.extend_cache_locs(
        req_pool_indices=rows,
        req_to_token=table,
        start_offset=starts,
        end_offset=ends,
        batch_size=len(spans),
        draft_token_num=0,
        device="cpu",
    )
    assert read.dtype == torch.int64
    assert read.tolist() == slots.tolist()


def test_draft_slots_and_positions(ops):
    table = torch.arange(40, dtype=torch.int32).view(2, 20)
    out, positions = torch.full((8,), -1), torch.full((4,), -1)
    ops.draft_cache_locs(torch.tensor([1, 0]), table, torch.tensor([3, 10]), out, 4, positions)
    assert out.tolist() == [23, 24, 25, 26, 10, 11, 12, 13]
    assert positions.tolist() == [3, 3, 10, 10]


def test_packing(ops):
    front = torch.full((6,), -1)
    ops.front_cache_locs(torch.tensor([2, 0, 1]), torch.arange(9), front)
    assert front.tolist() == [0, 1, 6, -1, -1, -1]
    accepted = torch.full((4,), -1)
    index = torch.tensor([[0, 2, -1], [3, -1, -1]])
    ops.accepted_cache_locs(index, torch.arange(6) * 10, accepted)
    assert accepted.tolist() == [0, 20, 30, -1]
    bonus = torch.zeros(2, dtype=torch.int32)
    tokens = torch.tensor([[5, 6, 7], [8, 9, 10]])
    ops.bonus_tokens(tokens, torch.tensor([3, 1]), bonus, 3)
    assert bonus.tolist() == [7, 8]


@pytest.mark.parametrize("page_size", [1, 4])
def test_draft_branches_read_the_prefix_and_their_own_tokens(ops, page_size):
    table = torch.arange(100, 140, dtype=torch.int32)[None]
    slots = ops.branch_slots(
        table, torch.tensor([0]), [6], topk=2, num_steps=3, page_size=page_size
    )
    prefix = list(range(100, 106))
    if page_size == 1:
        assert slots.tolist() == [[*prefix, 106, 107, 108], [*prefix, 109, 110, 111]]
    else:
        # Two pages a branch from slot 104 on; each begins with the two committed tokens.
        assert slots.tolist() == [[*prefix, 106, 107, 108], [*prefix, 114, 115, 116]]


def test_renormalisation(ops):
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
    top_k = ops.top_k_renorm(probs, torch.tensor([2, 1 << 30]))
    torch.testing.assert_close(top_k, torch.tensor([[0.625, 0.375, 0], [0.1, 0.2, 0.7]]))
    top_p = ops.top_p_renorm(probs, torch.tensor([0.6, 0.1]))
    torch.testing.assert_close(top_p, torch.tensor([[0.625, 0.375, 0], [0, 0, 1.0]]))


def test_sampled_verification_keeps_the_distribution(ops):
    """Whatever was drafted, the first token is distributed as the target's."""
    draws, vocabulary = 4000, 4
    probs = torch.tensor([0.1, 0.2, 0.3, 0.4]).expand(draws, 3, vocabulary)
    links = empty_links(draws, 3)
    for b in range(draws):
        links.write(b, [-1, 0, 0])
    gen = torch.Generator().manual_seed(0)
    predicts = torch.zeros(draws * 3, dtype=torch.int32)
    accept_index = torch.full((draws, 3), -1, dtype=torch.int32)
    accepted = torch.zeros(draws, dtype=torch.int32)
    ops.sample_tree(
        links,
        torch.tensor([[9, 2, 3]]).expand(draws, 3),
        probs,
        torch.rand(draws, 3, generator=gen),
        predicts=predicts,
        accept_index=accept_index,
        accepted_drafts=accepted,
    )
    first = predicts.view(draws, 3)[:, 0]
    share = torch.bincount(first, minlength=vocabulary) / draws
    torch.testing.assert_close(share, probs[0, 0], atol=0.03, rtol=0)
    # Two of the four tokens were drafted: those draws are accepted, no others.
    assert torch.equal(accepted.bool(), first >= 2)


def test_sampling_follows_the_links_by_upstreams_names():
    """The draw 0.5 falls on token 1, which was drafted; the one after it on token 0."""
    links = empty_links(1, 2)
    links.write(0, [-1, 0])
    predicts = torch.zeros(2, dtype=torch.int32)
    accept_index = torch.full((1, 2), -1, dtype=torch.int32)
    accepted = torch.zeros(1, dtype=torch.int32)
    sampling.verify_tree_sampling(
        candidates=torch.tensor([[7, 1]]),
        target_probs=torch.tensor([[[0.2, 0.8], [0.9, 0.1]]]),
        uniform_samples=torch.tensor([[0.5, 0.5]]),
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accepted,
        retrive_index=links.row,
        retrive_next_token=links.child,
        retrive_next_sibling=links.sibling,
        draft_probs=None,
        deterministic=True,
    )
    assert (predicts.tolist(), accept_index.tolist()) == ([1, 0], [[0, 1]])
    assert accepted.tolist() == [1]


def test_lossy_acceptance_is_refused():
    with pytest.raises(ValueError, match=r"threshold-single 0\.5"):
        sampling.verify_tree_sampling(
            candidates=torch.zeros(1, 1),
            target_probs=torch.ones(1, 1, 1),
            uniform_samples=torch.zeros(1, 1),
            predicts=torch.zeros(1),
            accept_index=torch.zeros(1, 1),
            accept_token_num=torch.zeros(1),
            threshold_single=0.5,
        )
