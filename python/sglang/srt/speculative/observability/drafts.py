# SPDX-License-Identifier: Apache-2.0
"""Which draft nodes each step offered, from where, at which depth.

Workers note it when they draft; the counting waits until the step's result is
processed, under overlap one step later and beside the next forward pass. Nothing is
copied from a device but the depths of a model's tree, without waiting.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

# Values of the proposers' node origins; 0 is the root or no node.
OWN, SHARED, NGRAM = 1, 2, 3
# Ours: a draft model's, and places that only fill the tree (see Trees.depths).
DRAFT_MODEL, PADDING = 4, 5
SOURCES = {
    OWN: "own",
    SHARED: "shared",
    NGRAM: "ngram",
    DRAFT_MODEL: "draft_model",
    PADDING: "padding",
}
# Match lengths are counted in buckets: the lower ends, and their labels.
MATCH_EDGES = np.array([0, 1, 2, 3, 5, 9, 17])
MATCH_LABELS = ("0", "1", "2", "3-4", "5-8", "9-16", "17+")
# For sources that do not say how long the match was.
NO_MATCH = len(MATCH_LABELS)
MATCH_NAMES = (*MATCH_LABELS, "unknown")

# An origin is a source and a match bucket in one number.
MODEL_ORIGIN = DRAFT_MODEL << 4 | NO_MATCH
TRIE_ORIGIN = NGRAM << 4 | NO_MATCH
FILLER_ORIGIN = PADDING << 4 | NO_MATCH
# Origins are below this.
ORIGINS = FILLER_ORIGIN + 1

# Steps whose result may still come: one under overlap, more in a pipeline.
_KEEP = 16


class Proposal(NamedTuple):
    """What a proposer says of its nodes, as arrays [n, W] (``sizes``: [n]).

    ``sources`` and ``match_lengths`` are None where it does not know.
    """

    sizes: np.ndarray
    sources: Optional[np.ndarray] = None
    match_lengths: Optional[np.ndarray] = None


@dataclass(slots=True)
class StepDrafts:
    """The trees of one step, n requests of W places each, as noted.

    ``tokens`` and ``mask`` (node j is node i or above it) are host arrays of a
    proposer without a model; ``positions`` (int64 [n * W] on the host or on its way
    there) is a draft model's tree. Neither: chains of W - 1 drafts.
    """

    width: int
    draft_slots: int = 0
    tokens: Optional[np.ndarray] = None
    mask: Optional[np.ndarray] = None
    proposal: Optional[Proposal] = None
    positions: Any = None

    def resolve(self, n: int) -> Trees:
        """Depths and origins, once the step's result is on the host."""
        if self.mask is not None:
            return _host_trees(self, n)
        if self.positions is not None:
            depths = self.positions.numpy().reshape(n, self.width)
            depths = depths - depths[:, :1]
        else:
            depths = np.broadcast_to(np.arange(self.width), (n, self.width))
        return Trees(depths=depths, origins=None, tokens=None, mask=None)


@dataclass(slots=True)
class Trees:
    """Draft trees of one step.

    ``depths``: int [n, W], 0 at the root and where a place holds no draft.
    ``origins``: int [n, W], source * 16 + match bucket; None: all a draft model's.
    ``tokens`` int [n, W] and ``mask`` [n, W, W] are there to find accepted nodes.
    """

    depths: np.ndarray
    origins: Optional[np.ndarray]
    tokens: Optional[np.ndarray]
    mask: Optional[np.ndarray]

    def accepted_origins(self, row: int, accepted: Sequence[int]) -> list[int]:
        """Origins of the nodes that verification followed.

        Args:
            row: place of the request in the batch.
            accepted: the tokens it accepted, without the bonus token.

        Returns:
            one a token. A place that only fills the tree can be accepted too, when
            the model wants its token: its source is ``PADDING``.
        """
        if self.origins is None:
            return [MODEL_ORIGIN] * len(accepted)
        tokens = self.tokens[row].tolist()
        depths = self.depths[row].tolist()
        above = self.mask[row]
        out, node = [], 0
        for depth, token in enumerate(accepted, start=1):
            for j in range(node + 1, len(tokens)):
                if tokens[j] == token and depths[j] == depth and above[j, node]:
                    node = j
                    out.append(int(self.origins[row, j]))
                    break
            else:
                out += [FILLER_ORIGIN] * (len(accepted) - len(out))
                break
        return out


def origin_labels(origin: int) -> tuple[str, str]:
    """Source and match length of a node's origin, as metrics name them."""
    return SOURCES[origin >> 4], MATCH_NAMES[origin & 15]


def _host_trees(noted: StepDrafts, n: int) -> Trees:
    width = noted.width
    tokens = noted.tokens.reshape(n, width)
    mask = noted.mask.reshape(n, width, width)
    depths = (mask != 0).sum(axis=2) - 1
    if noted.proposal is None:
        sizes = _sizes_without_padding(tokens, depths)
        origins = np.full((n, width), TRIE_ORIGIN)
    else:
        sizes = noted.proposal.sizes
        origins = _origins(noted.proposal, (n, width))
    depths[np.arange(width) >= sizes[:, None]] = 0
    return Trees(depths=depths, origins=origins, tokens=tokens, mask=mask)


def _sizes_without_padding(tokens: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """Nodes in use, the root included.

    Upstream's corpus fills a tree with token 0 directly below the root, at the end.
    A real draft of token 0 there is the same, and counts as a filler.
    """
    real = (tokens != 0) | (depths != 1)
    real[:, 0] = True
    width = tokens.shape[1]
    return width - real[:, ::-1].argmax(axis=1)


def _origins(proposal: Proposal, shape: tuple[int, int]) -> np.ndarray:
    if proposal.sources is None:
        return np.full(shape, OWN << 4 | NO_MATCH)
    # A step may be narrower than the proposal, where all trees are.
    given = proposal.sources[:, : shape[1]]
    sources = np.where(given == 0, OWN, given).astype(np.int64)
    if proposal.match_lengths is None:
        buckets = np.int64(NO_MATCH)
    else:
        lengths = proposal.match_lengths[:, : shape[1]]
        buckets = np.searchsorted(MATCH_EDGES, lengths, "right") - 1
        buckets = np.where(sources == NGRAM, NO_MATCH, buckets)
    return sources << 4 | buckets


class DraftLog:
    """Notes of the steps whose result was not processed yet, by step number."""

    def __init__(self):
        self._steps: OrderedDict[int, StepDrafts] = OrderedDict()
        self._proposal: Optional[tuple[int, Proposal]] = None

    def __len__(self) -> int:
        return len(self._steps)

    def propose(self, step: int, proposal: Proposal) -> None:
        """A proposer's account of the trees that ``put_host`` notes next."""
        self._proposal = (step, proposal)

    def put_host(self, step: int, tokens: np.ndarray, mask: np.ndarray, n: int) -> None:
        """Trees drafted on the host: int [n * W] and [n * W * W]."""
        proposal = None
        if self._proposal is not None and self._proposal[0] == step:
            proposal = self._proposal[1]
        self._proposal = None
        width = len(tokens) // n
        self._put(step, StepDrafts(width, tokens=tokens, mask=mask, proposal=proposal))

    def put_model(self, step: int, verify_input: Any) -> None:
        """A draft model's trees, as they were verified."""
        positions = None
        steps, topk = verify_input.spec_steps or 0, verify_input.topk or 1
        if topk > 1 and verify_input.positions is not None:
            from sglang.srt.utils.common import async_d2h

            positions = async_d2h(verify_input.positions)
        self._put(
            step,
            StepDrafts(
                verify_input.draft_token_num,
                draft_slots=steps * topk,
                positions=positions,
            ),
        )

    def take(self, step: Optional[int], width: int) -> StepDrafts:
        """The notes of a step; a chain of ``width`` where there are none."""
        noted = self._steps.pop(step, None)
        return StepDrafts(width) if noted is None else noted

    def _put(self, step: int, noted: StepDrafts) -> None:
        self._steps[step] = noted
        while len(self._steps) > _KEEP:
            self._steps.popitem(last=False)


# Where this process' workers note their drafts; None without --enable-metrics.
_active: Optional[DraftLog] = None


def install(log: Optional[DraftLog]) -> None:
    """Makes ``log`` the one that the functions below write; None stops noting."""
    global _active
    _active = log


def active() -> Optional[DraftLog]:
    """The installed log."""
    return _active


def note_proposal(batch: Any, places: Sequence[int], drafted: Any) -> None:
    """A proposer drafted for requests of ``batch``; ``note_host_trees`` follows.

    Args:
        places: their places in the batch; the others get a root alone.
        drafted: with ``sizes`` [n] and, if the proposer knows them, ``sources`` and
            ``match_lengths`` [n, W], as of sgl_kernel_ext's ``DraftBatch``.
    """
    if _active is not None:
        proposal = _spread(len(batch.reqs), places, drafted)
        _active.propose(batch.forward_iter, proposal)


def _spread(n: int, places: Sequence[int], drafted: Any) -> Proposal:
    def full(rows: Optional[np.ndarray], other: int) -> Optional[np.ndarray]:
        if rows is None or len(places) == n:
            return rows
        out = np.full((n, *rows.shape[1:]), other, rows.dtype)
        out[places] = rows
        return out

    return Proposal(
        full(drafted.sizes, 1),
        full(getattr(drafted, "sources", None), 0),
        full(getattr(drafted, "match_lengths", None), 0),
    )


def note_host_trees(batch: Any, tokens: np.ndarray, mask: np.ndarray) -> None:
    """Drafts for the requests of ``batch``: int64 [n * W] and [n * W * W]."""
    if _active is not None:
        _active.put_host(batch.forward_iter, tokens, mask, len(batch.reqs))


def note_verified(batch: Any, verify_input: Any) -> None:
    """A draft model's trees for the requests of ``batch`` were verified."""
    if _active is not None and not batch.forward_mode.is_idle():
        _active.put_model(batch.forward_iter, verify_input)
