# SPDX-License-Identifier: Apache-2.0
"""The proposer's texts follow the requests of decode batches."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

sam = pytest.importorskip("sgl_kernel_ext.suffix_automaton", reason="needs sgl-kernel-ext")
texts = pytest.importorskip(
    "sglang.srt.speculative.suffix_automaton.texts", reason="topic ngram-sam is not in this build"
)


class FakeRequest:
    """What a scheduler's request shows to the texts."""

    def __init__(self, rid: str, prompt: list[int], **keys: str | None):
        self.rid = rid
        self.origin_input_ids = array("q", prompt)
        self.origin_input_ids_unpadded = self.origin_input_ids
        self.output_ids = array("q")
        self.extra_key = keys.get("extra_key")
        self.cache_salt = keys.get("cache_salt")
        self.lora_id = keys.get("lora_id")
        self.done = False
        self.finished_len: int | None = None

    @property
    def output_ids_through_stop(self) -> array:
        return self.output_ids[: self.finished_len]

    def finished(self) -> bool:
        return self.done


def make(**settings):
    settings = {"draft_token_num": 8, "vocab_size": 1000, "mode": "fast", **settings}
    proposer = sam.DraftProposer(sam.ProposerConfig(**settings))
    return proposer, texts.RequestTexts(proposer)


def step(proposer, kept, reqs, pending=None):
    """One decode step: returns, for each request, the drafted tokens, or None without drafts."""
    pending = pending or [[] for _ in reqs]
    handles, tokens, offsets, places = kept.update(reqs, pending)
    batch = proposer.step_flat(handles, tokens, offsets)
    drafts: list[set[int] | None] = [None] * len(reqs)
    for row, place in enumerate(places):
        drafts[place] = set(batch.tokens[row, 1 : batch.sizes[row]].tolist())
    return drafts


def test_prompt_and_output_are_known_from_the_first_step():
    proposer, kept = make()
    req = FakeRequest("a", [10, 11, 12, 13, 10])
    req.output_ids.append(11)
    (drafted,) = step(proposer, kept, [req])
    assert 12 in drafted
    assert proposer.counters()["own_tokens"] == 6


def test_only_new_tokens_are_added():
    proposer, kept = make()
    req = FakeRequest("a", [10, 11])
    for tokens in ([12], [13, 14], [], [15]):
        req.output_ids.extend(tokens)
        step(proposer, kept, [req])
    assert proposer.counters()["own_tokens"] == 6
    assert proposer.counters()["shared_tokens"] == 4


def test_tokens_of_the_last_round_are_added_once():
    """Under overlap they arrive in the output after the drafts were made."""
    proposer, kept = make()
    req = FakeRequest("a", [10, 11])
    req.output_ids.append(12)
    step(proposer, kept, [req])
    step(proposer, kept, [req], [[13, 14]])
    assert proposer.counters()["own_tokens"] == 5
    req.output_ids.extend([13, 14])
    step(proposer, kept, [req], [[15]])
    assert proposer.counters()["own_tokens"] == 6


@pytest.mark.parametrize(
    ("output", "length", "spliced"),
    [([12], 4, True), ([12, 13, 14], 4, False)],
    ids=["result not processed yet", "result drained early"],
)
def test_the_cache_length_tells_whether_a_round_is_in_the_output(output, length, spliced):
    req = FakeRequest("a", [10, 11])
    req.output_ids.extend(output)
    assert list(texts.pending_tokens(req, [13, 14], length)) == ([13, 14] if spliced else [])


def test_text_survives_retraction():
    proposer, kept = make(share_outputs=False)
    req, other = FakeRequest("a", [900, 901, 902, 5]), FakeRequest("b", [1, 2])
    for r in (req, other):
        r.output_ids.append(3)
    step(proposer, kept, [req, other])
    for _ in range(3):  # out of the batch, not finished
        other.output_ids.append(4)
        step(proposer, kept, [other])
    req.output_ids.extend([900])
    drafted, _ = step(proposer, kept, [req, other])
    assert 901 in drafted
    assert len(kept) == 2


def test_a_finished_request_is_dropped():
    proposer, kept = make()
    req, other = FakeRequest("a", [1, 2, 3]), FakeRequest("b", [1, 2])
    step(proposer, kept, [req, other])
    req.done = True
    step(proposer, kept, [other])
    assert len(kept) == proposer.counters()["requests"] == 1


@pytest.mark.parametrize("overlap", [False, True])
def test_the_last_round_of_a_finished_request_is_shared_up_to_its_stop(overlap):
    """Under overlap the request was in one more batch, which brought all of the round."""
    proposer, kept = make()
    req, other = FakeRequest("a", [1, 2, 3]), FakeRequest("b", [1, 2])
    req.output_ids.append(900)
    step(proposer, kept, [req, other])
    if overlap:
        step(proposer, kept, [req, other], [[901, 902, 903], []])
    req.output_ids.extend([901, 902, 903])
    req.done, req.finished_len = True, 3
    other.output_ids.extend([900, 901])
    (drafted,) = step(proposer, kept, [other])
    assert 902 in drafted
    assert (903 in drafted) == overlap
    assert proposer.counters()["requests"] == 1


def test_nothing_is_added_of_a_finished_request_whose_text_was_dropped():
    proposer, kept = make(max_total_tokens=64)
    req, other = FakeRequest("a", [1, 2] * 20), FakeRequest("b", [3, 4] * 20)
    assert step(proposer, kept, [req, other])[0] is None
    req.output_ids.extend([900, 901, 902])
    req.done = True
    step(proposer, kept, [other])
    assert proposer.counters()["shared_tokens"] == 0
    assert len(kept) == proposer.counters()["requests"] == 1


def test_a_request_that_was_aborted_while_it_waited_is_dropped_in_time(monkeypatch):
    """It never finishes; when its object is collected differs between ranks, steps do not."""
    monkeypatch.setattr(texts, "LONGEST_ABSENCE", 5)
    proposer, kept = make()
    req, other = FakeRequest("a", [1, 2, 3]), FakeRequest("b", [1, 2])
    step(proposer, kept, [req, other])
    del req
    held = []
    for _ in range(8):
        step(proposer, kept, [other])
        held.append(proposer.counters()["requests"])
    assert held == [2] * 5 + [1] * 3
    assert len(kept) == 1


def test_a_request_that_returns_after_a_long_absence_begins_anew(monkeypatch):
    monkeypatch.setattr(texts, "LONGEST_ABSENCE", 2)
    proposer, kept = make(share_outputs=False)
    req, other = FakeRequest("a", [900, 901, 902]), FakeRequest("b", [1, 2])
    step(proposer, kept, [req, other])
    for _ in range(4):
        step(proposer, kept, [other])
    req.output_ids.extend([900, 901])
    drafted, _ = step(proposer, kept, [req, other])
    assert 902 in drafted


@pytest.mark.parametrize("ends", [True, False], ids=["finished", "aborted while waiting"])
def test_bounds_act_alike_whether_or_not_objects_are_collected(ends):
    """Ranks collect garbage at different times: what is given up must not depend on it."""

    def run(collected: bool) -> list:
        proposer, kept = make(max_total_tokens=120, share_outputs=False)
        reqs = [FakeRequest(str(i), [i, i + 1] * 20) for i in range(5)]
        trees = [step(proposer, kept, reqs[:2])]
        step(proposer, kept, reqs[1:2])
        reqs[0].done = ends
        if collected:
            reqs[0] = None
        trees.append(step(proposer, kept, reqs[1:3]))
        trees.append(step(proposer, kept, reqs[1:5]))
        return [*trees, proposer.counters()["requests_dropped"]]

    assert run(True) == run(False)


def test_a_lora_adapter_is_a_namespace():
    schedule_batch = pytest.importorskip("sglang.srt.managers.schedule_batch")
    params = pytest.importorskip("sglang.srt.sampling.sampling_params").SamplingParams
    names = {
        texts.namespace_of(
            schedule_batch.Req("r", "", array("q", [1, 2]), params(), lora_id=lora, extra_key=key)
        )
        for lora in (None, "x", "y")
        for key in (None, "k", "kx")  # "k" with the adapter x reads "kx" upstream
    }
    assert len(names) == 9


def test_a_request_id_that_is_used_again_is_another_request():
    """llama.cpp 27852: a reused slot kept the old text, and acceptance fell from 86 to 11 %."""
    proposer, kept = make(share_outputs=False)
    first = FakeRequest("same", [900, 901, 902, 903])
    step(proposer, kept, [first])
    second = FakeRequest("same", [5, 6, 7, 900])
    second.output_ids.append(901)
    (drafted,) = step(proposer, kept, [second])
    assert 902 not in drafted
    assert proposer.counters()["requests"] == 2  # the first has not finished
    first.done = True
    step(proposer, kept, [second])
    assert proposer.counters()["requests"] == 1


def test_an_output_that_was_taken_back_starts_the_text_anew():
    proposer, kept = make(share_outputs=False)
    req = FakeRequest("a", [1, 2, 3])
    req.output_ids.extend([900, 901])
    step(proposer, kept, [req])
    del req.output_ids[:]
    step(proposer, kept, [req])
    assert proposer.counters()["own_tokens"] == 3


def test_requests_beyond_the_bound_go_without_drafts_until_they_return():
    proposer, kept = make(max_total_tokens=100, share_outputs=False)
    reqs = [FakeRequest(str(i), [i, i + 1] * 20) for i in range(4)]
    drafts = step(proposer, kept, reqs)
    assert [d is None for d in drafts] == [True, True, False, False]
    assert step(proposer, kept, reqs)[0] is None  # no thrashing: the others stay
    assert proposer.counters()["requests_dropped"] == 2
    for r in reqs[2:]:
        r.done = True
    drafts = step(proposer, kept, [reqs[0]])
    assert drafts == [None]  # still in the batch
    step(proposer, kept, [])
    (drafted,) = step(proposer, kept, [reqs[0]])
    assert drafted


@pytest.mark.parametrize(
    "other",
    [{"extra_key": "b"}, {"cache_salt": "a"}, {"extra_key": "a", "cache_salt": "a"}, {}],
)
def test_outputs_stay_in_their_namespace(other):
    proposer, kept = make()
    first = FakeRequest("1", [1], extra_key="a")
    first.output_ids.extend([900, 901, 902])
    step(proposer, kept, [first])
    stranger, friend = FakeRequest("2", [5], **other), FakeRequest("3", [5], extra_key="a")
    for r in (stranger, friend):
        r.output_ids.extend([900, 901])
    seen = step(proposer, kept, [first, stranger, friend])
    assert 902 not in seen[1]
    assert 902 in seen[2]


def test_no_two_pairs_of_keys_share_a_name():
    pairs = [
        ("ab", ""),
        ("a", "b"),
        ("", "ab"),
        (None, "ab"),
        (None, None),
        ("1:", "a"),
        ("1", ":a"),
    ]
    names = {texts.namespace_of(FakeRequest("r", [], extra_key=k, cache_salt=s)) for k, s in pairs}
    assert len(names) == len(pairs) - 1  # "" and None are the same


def test_a_flush_forgets_all():
    proposer, kept = make()
    req = FakeRequest("a", [1, 2, 3])
    req.output_ids.append(4)
    step(proposer, kept, [req])
    kept.clear()
    assert proposer.counters()["requests"] == proposer.counters()["shared_tokens"] == 0
    step(proposer, kept, [req])
    assert proposer.counters()["own_tokens"] == 4


def test_equal_ranks_keep_equal_drafts():
    def run():
        proposer, kept = make(max_total_tokens=150, max_shared_tokens=64)
        reqs = [FakeRequest(str(i), [i, i + 1, i] * 10) for i in range(6)]
        trees = []
        for round_ in range(30):
            batch = [r for i, r in enumerate(reqs) if (round_ + i) % 3]
            for r in batch:
                r.output_ids.append((round_ * 7 + int(r.rid)) % 11)
            handles, tokens, offsets, places = kept.update(batch, [[] for _ in batch])
            out = proposer.step_flat(handles, tokens, offsets)
            trees.append((places, out.tokens.tolist(), out.probabilities.tolist()))
        return trees

    assert run() == run()


def test_hints_are_read_from_the_corpus_form():
    hints = pytest.importorskip("sglang.srt.speculative.suffix_automaton.hints")
    # node 1 below the root, 2 below 1, 3 a second child of the root, 4 and 5 padding
    tokens = np.array([7, 5, 6, 8, 0, 0])
    mask = np.eye(6, dtype=np.int64)
    mask[:, 0] = 1
    mask[2, 1] = 1
    trees, parents = hints.trees_from_mask(tokens, mask.reshape(-1), 6)
    assert trees.tolist() == [[7, 5, 6, 8, 0, 0]]
    assert parents.tolist() == [[-1, 0, 1, 0, -2, -2]]
