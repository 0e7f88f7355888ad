# SPDX-License-Identifier: Apache-2.0
"""What the worker hands to upstream's verification, without a model."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import numpy as np
import pytest

sam = pytest.importorskip("sgl_kernel_ext.suffix_automaton", reason="needs sgl-kernel-ext")
texts = pytest.importorskip(
    "sglang.srt.speculative.suffix_automaton.texts", reason="topic ngram-sam is not in this build"
)
torch = pytest.importorskip("torch")

WIDTH = 6


class FakeRequest:
    """What a scheduler's request shows to the worker."""

    extra_key = cache_salt = lora_id = None

    def __init__(self, rid: str, prompt: list[int], output: list[int]):
        self.rid = rid
        self.origin_input_ids = self.origin_input_ids_unpadded = array("q", prompt)
        self.output_ids = array("q", output)

    def finished(self) -> bool:
        return False


class FakeCorpus:
    """The corpus' interface; drafts token 77 below the root and one more after it."""

    def __init__(self, names: dict[str, int]):
        self.names, self.put, self.got = names, [], []

    def load_external_corpus_named(self, name, chunks):
        self.names[name] = sum(map(len, chunks))
        return self.names[name]

    def list_external_corpora(self):
        return self.names

    def synchronize(self):
        pass

    def batch_get(self, rids, tails, totals):
        self.got.append((tails, totals))
        tokens = np.zeros((len(rids), WIDTH), np.int64)
        tokens[:, 1:3] = 77, 78
        mask = np.tile(np.eye(WIDTH, dtype=np.int64), (len(rids), 1, 1))
        mask[:, :, 0] = 1
        mask[:, 2, 1] = 1
        return tokens.reshape(-1), mask.reshape(-1)

    def batch_put(self, tails):
        self.put.append(tails)


def make_worker(overlap: bool = False, corpora=None, learns: bool = False, **settings):
    from sglang.srt.speculative.suffix_automaton.worker import SuffixAutomatonWorker

    worker = object.__new__(SuffixAutomatonWorker)
    worker.draft_token_num, worker.max_trie_depth = WIDTH, 18
    worker.enable_overlap = overlap
    worker.proposer = sam.DraftProposer(
        sam.ProposerConfig(draft_token_num=WIDTH, vocab_size=1000, **settings)
    )
    worker.texts = texts.RequestTexts(worker.proposer)
    worker.ngram_corpus = FakeCorpus(corpora or {})
    worker.corpus_learns = learns
    worker._steps, worker._exports = 0, False
    return worker


def draft(worker, batch):
    tokens, mask, sizes = worker.draft_trees(batch)
    assert len(sizes) == len(batch.reqs) and sizes.min() >= 1
    return tokens.reshape(-1), mask.reshape(-1)


def make_batch(reqs, accepted=None, lengths=None):
    info = SimpleNamespace()
    if accepted is not None:
        flat = torch.zeros(len(reqs) * WIDTH, dtype=torch.int32)
        for i, tokens in enumerate(accepted):
            flat[i * WIDTH : i * WIDTH + len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        info.accept_tokens = flat
        info.accept_lens = torch.tensor([len(tokens) for tokens in accepted])
    return SimpleNamespace(
        reqs=reqs,
        spec_info=info,
        seq_lens_cpu=None if lengths is None else torch.tensor(lengths),
        grammar_needs_sync=lambda: False,
    )


def test_drafts_have_upstreams_form():
    worker = make_worker()
    reqs = [FakeRequest("a", [1, 2, 3, 1, 2], [3]), FakeRequest("b", [9], [8])]
    tokens, mask = draft(worker, make_batch(reqs))
    assert tokens.shape == (2 * WIDTH,) and tokens.dtype == np.int64
    assert mask.shape == (2 * WIDTH * WIDTH,)
    trees = mask.reshape(2, WIDTH, WIDTH)
    assert trees[:, np.arange(WIDTH), np.arange(WIDTH)].all() and trees[:, :, 0].all()
    assert tokens.reshape(2, WIDTH)[:, 0].tolist() == [3, 8]
    assert 1 in tokens[1:WIDTH]


def test_under_overlap_the_last_round_is_spliced_once():
    worker = make_worker(overlap=True)
    req = FakeRequest("a", [1, 2], [3])
    draft(worker, make_batch([req], [[3]], [2]))  # the prefill's token is there
    assert worker.proposer.counters()["own_tokens"] == 3
    tokens, _ = draft(worker, make_batch([req], [[4, 5]], [4]))
    assert worker.proposer.counters()["own_tokens"] == 5 and tokens[0] == 5
    req.output_ids.extend([4, 5, 6])  # this round was processed before the drafts
    tokens, _ = draft(worker, make_batch([req], [[6]], [5]))
    assert worker.proposer.counters()["own_tokens"] == 6 and tokens[0] == 6


def test_a_request_without_drafts_is_verified_with_its_last_token():
    worker = make_worker(max_total_tokens=64)
    reqs = [FakeRequest(str(i), [i + 1, 5] * 20, [7 + i]) for i in range(2)]
    tokens, mask = draft(worker, make_batch(reqs))
    assert tokens.reshape(2, WIDTH)[:, 0].tolist() == [7, 8]
    assert tokens[1:WIDTH].tolist() == [0] * (WIDTH - 1)
    bare = mask.reshape(2, WIDTH, WIDTH)[0]
    assert (bare == (np.eye(WIDTH, dtype=bool) | (np.arange(WIDTH) == 0))).all()


@pytest.mark.parametrize(
    ("corpora", "learns", "asked"), [({}, False, 0), ({"docs": 9}, False, 1), ({}, True, 1)]
)
def test_the_corpus_is_asked_where_it_holds_anything(corpora, learns, asked):
    worker = make_worker(corpora=corpora, learns=learns)
    req = FakeRequest("a", [1, 2], [3])
    tokens, _ = draft(worker, make_batch([req]))
    corpus = worker.ngram_corpus
    assert len(corpus.got) == asked
    assert (77 in tokens) == bool(asked)
    if asked:
        assert corpus.got[0] == ([[1, 2, 3]], [3])
    assert corpus.put == ([[[1, 2, 3]]] if learns else [])


@pytest.mark.parametrize("key", ["extra_key", "cache_salt", "lora_id"])
def test_a_learning_corpus_crosses_no_namespace(key):
    reqs = [FakeRequest(rid, [1, 2], [3 + i]) for i, rid in enumerate("abc")]
    setattr(reqs[1], key, "tenant")
    worker = make_worker(learns=True)
    tokens, _ = draft(worker, make_batch(reqs))
    drafted = [77 in row for row in tokens.reshape(3, WIDTH)]
    assert drafted == [True, False, True]
    assert worker.ngram_corpus.put == [[[1, 2, 3], [1, 2, 5]]]
    draft(worker, make_batch(reqs[1:2]))
    assert len(worker.ngram_corpus.put) == 1


@pytest.mark.parametrize("key", ["extra_key", "cache_salt", "lora_id"])
def test_external_corpora_are_for_every_namespace(key):
    req = FakeRequest("a", [1, 2], [3])
    setattr(req, key, "tenant")
    worker = make_worker(corpora={"docs": 9})
    tokens, _ = draft(worker, make_batch([req]))
    assert 77 in tokens


@pytest.mark.parametrize(
    ("running", "ranks", "budget", "refusal"),
    [
        (True, 1, 4, None),
        (False, 2, 4, None),  # at start-up all ranks load before the first step
        (True, 2, 4, "start-up only .*-corpus-path"),
        (True, 1, 0, "no effect with --speculative-ngram-external-sam-budget 0"),
    ],
)
def test_a_corpus_is_loaded_where_ranks_keep_equal_drafts(
    monkeypatch, running, ranks, budget, refusal
):
    from sglang.srt.speculative.suffix_automaton import worker as module

    spec = SimpleNamespace(speculative_ngram_external_sam_budget=budget)
    monkeypatch.setattr(module, "get_spec", lambda: spec)
    monkeypatch.setattr(module, "get_parallel", lambda: SimpleNamespace(tp_size=ranks))
    worker = make_worker()
    if not running:
        del worker.proposer
    if refusal is None:
        assert worker.add_external_corpus("docs", [[1, 2], [3]]) == 3
    else:
        with pytest.raises(ValueError, match=refusal):
            worker.add_external_corpus("docs", [[1, 2], [3]])
    assert worker.ngram_corpus.names == ({"docs": 3} if refusal is None else {})
