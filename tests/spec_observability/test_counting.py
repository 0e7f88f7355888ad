# SPDX-License-Identifier: Apache-2.0
"""Counting drafts: worked examples, and invariants against a plain recount."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

drafts = pytest.importorskip("sglang.srt.speculative.observability.drafts")
from sglang.srt.speculative.observability.step import Outcome, count_step  # noqa: E402
from sglang.srt.speculative.observability.summary import RequestSummary  # noqa: E402
from sglang.srt.speculative.observability.totals import ServerTotals  # noqa: E402


def tree(width, nodes):
    """Tokens and mask as proposers give them; nodes are (parent, token), padding is added."""
    tokens = np.zeros(width, np.int64)
    mask = np.zeros((width, width), np.int64)
    parents = [-1, *(parent for parent, _ in nodes)]
    parents += [0] * (width - len(parents))
    for i, (_, token) in enumerate(nodes, start=1):
        tokens[i] = token
    for i, parent in enumerate(parents):
        if parent >= 0:
            mask[i] = mask[parent]
        mask[i, i] = 1
    return tokens, mask


def noted(width, *trees, proposal=None):
    made = [tree(width, nodes) for nodes in trees]
    return drafts.StepDrafts(
        width,
        tokens=np.concatenate([t for t, _ in made]),
        mask=np.concatenate([m.ravel() for _, m in made]),
        proposal=proposal,
    )


# root - 7 - 8 - 9, and 5 below the root
SMALL = [(0, 7), (0, 5), (1, 8), (3, 9)]


def test_a_tree_with_fillers():
    step = count_step(noted(8, SMALL), [Outcome([7, 8], 3, 20)]).requests[0]
    assert (step.drafted, step.accepted) == (4, 2)
    assert step.drafted_at == [2, 1, 1]
    assert step.drafted_from == {drafts.TRIE_ORIGIN: 4}
    assert step.accepted_from == [drafts.TRIE_ORIGIN] * 2
    assert (step.kv_written, step.kv_overwritten) == (8, 5)
    assert (step.reserved, step.unneeded) == (20, 12)


def test_a_filler_that_is_accepted_counts_as_a_draft():
    step = count_step(noted(8, SMALL), [Outcome([0], 2, 0)]).requests[0]
    assert (step.drafted, step.accepted) == (5, 1)
    assert step.drafted_at == [3, 1, 1]
    assert step.accepted_from == [drafts.FILLER_ORIGIN]
    assert step.drafted_from[drafts.FILLER_ORIGIN] == 1


def test_a_tree_of_fillers_alone():
    counts = count_step(noted(4, [], []), [Outcome([], 1, 0), Outcome([0], 2, 0)])
    assert [s.drafted for s in counts.requests] == [0, 1]
    assert [s.accepted for s in counts.requests] == [0, 1]
    assert counts.requests[0].drafted_at == []


def test_a_real_draft_of_token_0_below_a_node():
    step = count_step(noted(4, [(0, 7), (1, 0)]), [Outcome([7, 0], 3, 0)]).requests[0]
    assert (step.drafted, step.accepted, step.drafted_at) == (2, 2, [1, 1])


def test_a_chain():
    counts = count_step(drafts.StepDrafts(4), [Outcome([1, 2], 3, 8), None, Outcome([], 1, 8)])
    assert [s and s.drafted for s in counts.requests] == [3, None, 3]
    assert counts.requests[0].drafted_at == [1, 1, 1]
    assert counts.requests[0].accepted_from == [drafts.MODEL_ORIGIN] * 2
    assert (counts.discarded_requests, counts.discarded_tokens, counts.discarded_kv) == (1, 3, 4)


def test_no_drafts_at_all():
    step = count_step(drafts.StepDrafts(1), [Outcome([], 1, 2)]).requests[0]
    assert (step.drafted, step.drafted_at, step.drafted_from) == (0, [], {})


def test_a_models_tree_by_its_positions():
    torch = pytest.importorskip("torch")
    # Two requests at lengths 10 and 20; depths 0 1 1 2.
    made = drafts.StepDrafts(
        4, draft_slots=6, positions=torch.tensor([10, 11, 11, 12, 20, 21, 21, 22])
    )
    counts = count_step(made, [Outcome([5, 6], 3, 10), Outcome([5], 2, 4)])
    assert [s.drafted_at for s in counts.requests] == [[2, 1], [2, 1]]
    assert [s.unneeded for s in counts.requests] == [4, 0]  # the draft needs 6 slots


def test_sources_and_match_lengths():
    proposal = drafts.Proposal(
        np.array([5]),
        np.array([[0, drafts.OWN, drafts.SHARED, drafts.OWN, drafts.NGRAM, 0, 0, 0]], np.uint8),
        np.array([[0, 4, 0, 24, 3, 0, 0, 0]], np.uint8),
    )
    step = count_step(noted(8, SMALL, proposal=proposal), [Outcome([7, 8, 9], 4, 0)]).requests[0]
    named = {drafts.origin_labels(o): n for o, n in step.drafted_from.items()}
    assert named == {
        ("own", "3-4"): 1,
        ("shared", "0"): 1,
        ("own", "17+"): 1,
        ("ngram", "unknown"): 1,
    }
    assert [drafts.origin_labels(o) for o in step.accepted_from] == [
        ("own", "3-4"),
        ("own", "17+"),
        ("ngram", "unknown"),
    ]


@pytest.mark.parametrize(
    ("length", "label"),
    [(0, "0"), (1, "1"), (2, "2"), (3, "3-4"), (4, "3-4"), (5, "5-8"), (8, "5-8"), (9, "9-16")]
    + [(16, "9-16"), (17, "17+"), (32, "17+")],
)
def test_match_buckets(length, label):
    proposal = drafts.Proposal(
        np.array([2]), np.array([[0, drafts.OWN]], np.uint8), np.array([[0, length]], np.uint8)
    )
    step = count_step(noted(2, [(0, 9)], proposal=proposal), [Outcome([], 1, 0)]).requests[0]
    assert [drafts.origin_labels(o) for o in step.drafted_from] == [("own", label)]


@st.composite
def steps(draw):
    """A step of random trees with random accepted paths, and a plain account of it."""
    width = draw(st.integers(1, 10))
    trees, outcomes, plain = [], [], []
    for _ in range(draw(st.integers(1, 4))):
        nodes, depth = [], [0]
        for i in range(draw(st.integers(0, width - 1))):
            parent = draw(st.integers(0, i))
            # Children of a node differ; token 0 below the root would be a filler.
            token = i + 1
            nodes.append((parent, token))
            depth.append(depth[parent] + 1)
        trees.append(nodes)
        path, node = [], 0
        while True:
            children = [i for i, (p, _) in enumerate(nodes, start=1) if p == node]
            if not children or not draw(st.booleans()):
                break
            node = draw(st.sampled_from(children))
            path.append(nodes[node - 1][1])
        filler = node == 0 and len(nodes) < width - 1 and draw(st.booleans())
        if filler:
            path = [0]
        if draw(st.integers(0, 4)) == 0:
            outcomes.append(None)
            plain.append((len(nodes), None))
        else:
            outcomes.append(Outcome(path, len(path) + 1, draw(st.integers(0, 40))))
            plain.append((len(nodes) + filler, (path, depth[1:] + [1] * filler)))
    return width, trees, outcomes, plain


@settings(max_examples=200, deadline=None)
@given(st.lists(steps(), min_size=1, max_size=6))
def test_sums_hold_for_any_steps(made):
    server, summaries = ServerTotals(), []
    written = discarded = 0
    depths, paths = [], []
    for width, trees, outcomes, plain in made:
        counts = count_step(noted(width, *trees), outcomes)
        server.add(counts)
        for step, (drafted, kept) in zip(counts.requests, plain, strict=True):
            written += width
            if kept is None:
                discarded += drafted
                continue
            summary = RequestSummary()
            summary.totals.add(step)
            summaries.append(summary)
            assert step.drafted == drafted
            paths.append(len(kept[0]))
            depths.append(kept[1])
    live = server.live
    assert server.discarded == discarded
    assert live.kv_written + server.discarded_kv == written
    assert live.accepted == sum(paths)
    assert live.drafted == sum(map(len, depths)) == live.accepted + live.rejected
    most = max((max(d, default=0) for d in depths), default=0)
    every = range(1, most + 1)
    assert live.drafted_at == [sum(d.count(k) for d in depths) for k in every]
    assert live.offered_at == [sum(max(d, default=0) >= k for d in depths) for k in every]
    hit = [sum(p >= k for p in paths) for k in range(1, max(paths, default=0) + 1)]
    assert live.accepted_at == hit
    for source in (live.drafted_from, live.accepted_from):
        assert all(count > 0 for count in source.values())
    assert sum(live.drafted_from.values()) == live.drafted
    assert sum(live.accepted_from.values()) == live.accepted
    infos = [s.meta_info() for s in summaries]
    for key, total in (
        ("drafted_tokens", live.drafted),
        ("accepted_tokens", live.accepted),
        ("rejected_tokens", live.rejected),
        ("kv_slots_written", live.kv_written),
        ("kv_slots_overwritten", live.kv_overwritten),
        ("kv_reserve_slot_steps", live.reserved),
        ("kv_reserve_unneeded_slot_steps", live.unneeded),
    ):
        assert sum(info[key] for info in infos) == total
    assert all(0 <= info["accept_rate"] <= 1 for info in infos)


def test_merging_is_adding():
    one, other, both = ServerTotals(), ServerTotals(), ServerTotals()
    first = count_step(noted(8, SMALL), [Outcome([7, 8], 3, 20)])
    second = count_step(noted(8, SMALL, SMALL[:1]), [Outcome([0], 2, 3), None])
    one.add(first)
    other.add(second)
    both.add(first)
    both.add(second)
    one.merge(other)
    assert one == both


def test_the_log_matches_notes_with_steps_and_is_bounded():
    log = drafts.DraftLog()
    tokens, mask = tree(4, [(0, 7)])
    log.propose(1, drafts.Proposal(np.array([2])))
    log.put_host(2, tokens, mask.ravel(), 1)  # of another step: not its proposal
    assert log.take(2, 9).proposal is None
    log.propose(3, drafts.Proposal(np.array([2])))
    log.put_host(3, tokens, mask.ravel(), 1)
    assert log.take(3, 9).proposal is not None
    assert log.take(3, 9) == drafts.StepDrafts(9)  # taken already: a chain
    for step in range(10, 100):
        log.put_host(step, tokens, mask.ravel(), 1)
    assert len(log) <= 16


def test_requests_without_a_proposal_have_a_root_alone():
    log = drafts.DraftLog()
    drafts.install(log)
    try:
        batch = SimpleNamespace(forward_iter=1, reqs=[object()] * 3)
        trees = [tree(4, nodes) for nodes in ([(0, 7)], [], [(0, 5), (1, 6)])]
        made = SimpleNamespace(
            sizes=np.array([2, 3]),
            sources=np.array([[0, 1, 0, 0], [0, 2, 2, 0]], np.uint8),
            match_lengths=np.array([[0, 3, 0, 0], [0, 1, 2, 0]], np.uint8),
        )
        drafts.note_proposal(batch, [0, 2], made)
        drafts.note_host_trees(
            batch,
            np.concatenate([t for t, _ in trees]),
            np.concatenate([m.ravel() for _, m in trees]),
        )
        noted_step = log.take(1, 4)
    finally:
        drafts.install(None)
    counts = count_step(noted_step, [Outcome([7], 2, 0), Outcome([], 1, 0), Outcome([], 1, 0)])
    assert [s.drafted for s in counts.requests] == [1, 0, 2]
    named = {drafts.origin_labels(o): n for o, n in counts.drafted_from.items()}
    assert named == {("own", "3-4"): 1, ("shared", "1"): 1, ("shared", "2"): 1}


def test_models_trees_are_noted_by_shape():
    log = drafts.DraftLog()
    chain = SimpleNamespace(spec_steps=3, topk=1, draft_token_num=4, positions=None)
    log.put_model(1, chain)
    assert log.take(1, 1) == drafts.StepDrafts(4, draft_slots=3)
    log.put_model(2, SimpleNamespace(spec_steps=0, topk=1, draft_token_num=1, positions=None))
    assert log.take(2, 7).width == 1  # adaptive: drafting paused
