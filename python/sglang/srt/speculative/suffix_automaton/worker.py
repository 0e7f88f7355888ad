# SPDX-License-Identifier: Apache-2.0
"""Upstream's NGRAM worker with drafts from the suffix-automaton proposer.

Verification, sampling and the KV cache are upstream's; only where drafts come
from and what is learned from their verification differ.
"""

from __future__ import annotations

import logging
from typing import Any, Optional

import numpy as np
from sglang.srt.runtime_context import (
    get_observability,
    get_parallel,
    get_serving,
    get_spec,
)
from sglang.srt.speculative.cpp_ngram.ngram_corpus import NgramCorpus
from sglang.srt.speculative.observability import drafts as spec_drafts
from sglang.srt.speculative.observability import stages as spec_stages
from sglang.srt.speculative.suffix_automaton.hints import NO_NODE, trees_from_mask
from sglang.srt.speculative.suffix_automaton.metrics import SamMetrics
from sglang.srt.speculative.suffix_automaton.settings import (
    load_extension,
    proposer_config,
)
from sglang.srt.speculative.suffix_automaton.texts import (
    RequestTexts,
    namespace_of,
    pending_tokens,
)
from sglang.srt.speculative.suffix_automaton.verify_width import FittedVerifyWorker

logger = logging.getLogger(__name__)

# Decode steps between two updates of the metrics.
_METRICS_INTERVAL = 32


class SuffixAutomatonWorker(FittedVerifyWorker):
    """See the module; constructed as ``NGRAMWorker`` is."""

    proposer: Any = None  # made after the corpus of the flags was loaded

    def __init__(self, server_args, *args: Any, **kwargs: Any):
        super().__init__(server_args, *args, **kwargs)
        spec = get_spec()
        config = proposer_config(spec, self.model_runner.model_config.vocab_size)
        self.proposer = load_extension().DraftProposer(config)
        self.texts = RequestTexts(self.proposer)
        self.follows_drafts = spec.speculative_ngram_sam_verify_width == "auto"
        # The trie takes in outputs too, as it does without us.
        self.corpus_learns = spec.speculative_ngram_sam_corpus == "always"
        path = spec.speculative_ngram_external_corpus_path
        if not self.corpus_learns and path is None:
            self.ngram_corpus = self._corpus_without_trie(spec)
        self._steps = 0
        # Equal on all ranks, so one of them says it.
        self._exports = (
            get_observability().enable_metrics and get_parallel().tp_rank == 0
        )
        self._metrics: Optional[SamMetrics] = None
        logger.info("Suffix-automaton drafts: %s", config)

    def _corpus_without_trie(self, spec) -> NgramCorpus:
        """A corpus for external corpora, which do not use its trie.

        Upstream makes all nodes of the trie at the start: 1.7 GiB by default.
        """
        return NgramCorpus(
            min_bfs_breadth=spec.speculative_ngram_min_bfs_breadth,
            max_bfs_breadth=spec.speculative_ngram_max_bfs_breadth,
            match_type=spec.speculative_ngram_match_type,
            capacity=self.max_trie_depth + 1,
            max_trie_depth=self.max_trie_depth,
            draft_token_num=self.draft_token_num,
            external_sam_budget=spec.speculative_ngram_external_sam_budget,
            external_corpus_max_tokens=spec.speculative_ngram_external_corpus_max_tokens,
        )

    def add_external_corpus(self, corpus_id: str, token_chunks: list[list[int]]) -> int:
        """Loads a corpus; returns its tokens.

        Raises:
            ValueError: it could have no effect, or ranks would meet it at different
                steps, draft differently and learn different weights for good.
        """
        if get_spec().speculative_ngram_external_sam_budget <= 0:
            raise ValueError(
                "external corpora have no effect with "
                "--speculative-ngram-external-sam-budget 0: give the number of nodes "
                "of a draft that they may take"
            )
        if self.proposer is not None and get_parallel().tp_size > 1:
            raise ValueError(
                "with --speculative-ngram-use-sam and --tp-size > 1 corpora can be "
                "loaded at start-up only (--speculative-ngram-external-corpus-path)"
            )
        return super().add_external_corpus(corpus_id, token_chunks)

    def clear_cache_pool(self) -> None:
        """Forgets requests, shared outputs and the corpus, on a cache flush."""
        super().clear_cache_pool()
        self.texts.clear()

    def _last_round(self, batch) -> list[list[int]]:
        """Tokens that the last round accepted, for each request of the batch."""
        accepted = getattr(batch.spec_info, "accept_tokens", None)
        if accepted is None:
            return [[] for _ in batch.reqs]
        stride = self.draft_token_num
        tokens = accepted.tolist()
        return [
            tokens[i * stride : i * stride + n]
            for i, n in enumerate(batch.spec_info.accept_lens.tolist())
        ]

    def draft_trees(self, batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See ``FittedVerifyWorker``."""
        reqs, width = batch.reqs, self.draft_token_num
        # The corpus still reads these; it is fed from the texts' own view below.
        self.prev_token_ids, self.prev_accept_lens = [], [0] * len(reqs)
        if self.enable_overlap and not batch.grammar_needs_sync():
            lengths = batch.seq_lens_cpu.tolist()
            pending = [
                pending_tokens(req, verified, length)
                for req, verified, length in zip(
                    reqs, self._last_round(batch), lengths, strict=True
                )
            ]
        else:
            pending = [()] * len(reqs)
        spec_stages.mark(spec_stages.LOOKUP)
        handles, tokens, offsets, places = self.texts.update(reqs, pending)
        hints = self._hints(reqs, pending)
        if hints is not None:
            hints = tuple(np.ascontiguousarray(part[places]) for part in hints)
        drafts = self.proposer.step_flat(handles, tokens, offsets, hints)
        spec_drafts.note_proposal(batch, places, drafts)
        self._publish()
        if len(places) == len(reqs):
            return drafts.tokens, drafts.mask, drafts.sizes
        return self._with_bare_roots(reqs, pending, places, drafts, width)

    def _hints(self, reqs, pending) -> Optional[tuple[np.ndarray, np.ndarray]]:
        """Trees of the n-gram corpus, where it holds anything."""
        if not self.corpus_learns and not self.ngram_corpus.list_external_corpora():
            return None
        depth = self.max_trie_depth
        tails = [self._tail(req, extra) for req, extra in zip(reqs, pending)]
        totals = [
            len(req.origin_input_ids_unpadded) + len(req.output_ids) + len(extra)
            for req, extra in zip(reqs, pending)
        ]
        self.ngram_corpus.synchronize()
        tokens, mask = self.ngram_corpus.batch_get(
            [req.rid for req in reqs], [tail[-depth:] for tail in tails], totals
        )
        trees, parents = trees_from_mask(tokens, mask, self.draft_token_num)
        if self.corpus_learns:
            # The trie has no namespaces: it serves requests that have none.
            foreign = np.array([bool(namespace_of(req)) for req in reqs])
            parents[foreign, 1:] = NO_NODE
            learned = [
                tail for tail, out in zip(tails, foreign, strict=True) if not out
            ]
            if learned:
                self.ngram_corpus.batch_put(learned)
        return trees, parents

    def _tail(self, req, extra) -> list[int]:
        """The last ``max_trie_depth`` tokens of a request."""
        output = list(req.output_ids[-self.max_trie_depth :]) + list(extra)
        missing = self.max_trie_depth - len(output)
        prompt = req.origin_input_ids_unpadded
        return (list(prompt[-missing:]) if missing > 0 else []) + output[
            -self.max_trie_depth :
        ]

    def _update_ngram_corpus(self, batch) -> None:
        """Nothing: the texts learn of what was verified at the next step."""

    def _with_bare_roots(self, reqs, pending, places, drafts, width):
        """Adds trees of the last token alone for requests without drafts."""
        tokens = np.zeros((len(reqs), width), np.int64)
        mask = np.zeros((len(reqs), width, width), np.bool_)
        mask[:, :, 0] = True
        mask[:, np.arange(width), np.arange(width)] = True
        for i in set(range(len(reqs))) - set(places):
            req = reqs[i]
            text = pending[i] or req.output_ids or req.origin_input_ids_unpadded
            tokens[i, 0] = text[-1]
        tokens[places] = drafts.tokens
        mask[places] = drafts.mask
        sizes = np.ones(len(reqs), np.int64)
        sizes[places] = drafts.sizes
        return tokens, mask, sizes

    def _publish(self) -> None:
        self._steps += 1
        if not self._exports or self._steps % _METRICS_INTERVAL != 1:
            return
        if self._metrics is None:
            labels = {"model_name": str(get_serving().served_model_name)}
            self._metrics = SamMetrics(labels)
        self._metrics.update(self.proposer.counters())
