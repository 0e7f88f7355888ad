# SPDX-License-Identifier: Apache-2.0
"""Drafts for speculative decoding from a request's own text and recent outputs.

`DraftProposer` keeps one suffix automaton for every request (prompt and output) and a bounded one
of recent outputs for every namespace. Once a decoding step it takes the tokens that the target
model produced and returns a draft tree for each request, grown by expected acceptance. All calls
release the interpreter lock and are serialised by the object.

Everything that is learned or shared follows the sequence of calls alone: objects that see the same
calls return the same trees, on every machine that runs the same build.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sgl_kernel_ext import _sam

MAX_DRAFT_TOKENS: int = _sam.MAX_WIDTH
MAX_DEPTH: int = _sam.MAX_DEPTH

# Automata over one text and over several; for tests and for exploring.
Automaton = _sam.Automaton
SharedAutomaton = _sam.SharedAutomaton


@dataclass(frozen=True)
class ProposerConfig:
    """Settings of a `DraftProposer`.

    Raises:
        ValueError: naming the setting, its value and what is allowed.
    """

    draft_token_num: int
    """Nodes of a draft tree, its root (the last real token) included: 1 to 64."""
    vocab_size: int
    """Ids from here on, and negative ones, are no text (multimodal padding): they end a context."""
    mode: Literal["fast", "full"] = "full"
    """`fast`: suffix contexts. `full`: also skip, gap and order-0 contexts and a correction."""
    threshold: float = 0.0
    """A node whose path is less probable than this is not drafted: 0 (fill the tree) to 1."""
    branches: int = 8
    """Children of a node, at most."""
    own_depth: int = 24
    """Longest context, in tokens, that is told apart in a request's own text: 1 to 32."""
    shared_depth: int = 16
    """The same in recent outputs."""
    share_outputs: bool = True
    """Draft from recent outputs of other requests of the same namespace."""
    max_request_tokens: int = 1 << 20
    """Tokens indexed for one request; the older half is given up when it is reached. More than two
    thirds of `max_total_tokens` are not used: half as many again fill the index that takes over."""
    max_total_tokens: int = 1 << 24
    """Tokens indexed for all requests; whole requests, longest unused first, are given up."""
    max_shared_tokens: int = 1 << 19
    """Recent output tokens in one namespace; the older half is given up when it is reached.
    All namespaces together hold at most 1.5 times as many, least recently used given up first;
    each counts for 64 tokens more than it holds."""
    pause_below: float = 0.0
    """A request whose rolling mean of accepted drafts a step falls below this pauses drafting for
    16 steps, tries for 4, then pauses twice as long, up to 256. 0: never. Steps that draft nothing
    (`threshold`) do not count."""
    pause_window: int = 32
    """Steps of the rolling mean."""

    def __post_init__(self) -> None:
        _require_range("draft_token_num", self.draft_token_num, 1, MAX_DRAFT_TOKENS)
        _require_range("vocab_size", self.vocab_size, 1, 2**31 - 2)
        if self.mode not in ("fast", "full"):
            raise ValueError(f"mode must be 'fast' or 'full', not {self.mode!r}")
        if not 0.0 <= self.threshold <= 1.0:
            raise ValueError(f"threshold must be between 0 and 1, not {self.threshold}")
        _require_range("branches", self.branches, 1, 16)
        _require_range("own_depth", self.own_depth, 1, MAX_DEPTH)
        _require_range("shared_depth", self.shared_depth, 1, MAX_DEPTH)
        _require_range("max_request_tokens", self.max_request_tokens, 64, 2**30)
        _require_range("max_total_tokens", self.max_total_tokens, 64, 2**40)
        _require_range("max_shared_tokens", self.max_shared_tokens, 64, 2**30)
        if not 0.0 <= self.pause_below <= self.draft_token_num:
            raise ValueError(
                f"pause_below must be between 0 and draft_token_num ({self.draft_token_num}), "
                f"not {self.pause_below}"
            )
        _require_range("pause_window", self.pause_window, 1, 1 << 20)


def _require_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must be between {low} and {high}, not {value}")


SOURCES = ("none", "request", "shared", "corpus")
"""Names of the values of `DraftBatch.sources`."""


class DraftBatch:
    """Draft trees of a batch of n requests, W = `draft_token_num` places each.

    Node 0 is the last real token; a node's parent stands before it. Places from `sizes[i]` on are
    padding: token 0 directly below the root, so a verifier that visits them is still right.
    The arrays are views of one block of memory, made when they are asked for.
    """

    __slots__ = ("_block", "_n", "_width")

    def __init__(self, n: int, width: int) -> None:
        # One block and no view yet: making arrays would take as long as a draft does.
        self._n, self._width = n, width
        self._block = np.empty(n * (width * (18 + width) + 4), np.uint8)

    def _view(self, dtype: type, offset: int, *shape: int) -> np.ndarray:
        return np.ndarray((self._n, *shape), dtype, self._block, offset * self._n)

    @property
    def tokens(self) -> np.ndarray:
        """int64 [n, W]."""
        return self._view(np.int64, 0, self._width)

    @property
    def parents(self) -> np.ndarray:
        """int32 [n, W]: -1 at the root, -2 at padding."""
        return self._view(np.int32, 8 * self._width, self._width)

    @property
    def probabilities(self) -> np.ndarray:
        """float32 [n, W]: estimated probability that the whole path to the node is accepted."""
        return self._view(np.float32, 12 * self._width, self._width)

    @property
    def sizes(self) -> np.ndarray:
        """int32 [n]: nodes in use, the root included."""
        return self._view(np.int32, 16 * self._width)

    @property
    def mask(self) -> np.ndarray:
        """bool [n, W, W]: node j is node i or one of its ancestors."""
        return self._view(np.bool_, 16 * self._width + 4, self._width, self._width)

    @property
    def sources(self) -> np.ndarray:
        """uint8 [n, W]: which text contributed most to a node (`SOURCES`): the request's own, the
        shared outputs or a hint; 0 at the root and at padding."""
        return self._view(np.uint8, self._width * (16 + self._width) + 4, self._width)

    @property
    def match_lengths(self) -> np.ndarray:
        """uint8 [n, W]: tokens of the suffix that contributed most; 0 for skips, pairs, order 0,
        hints, the root and padding."""
        return self._view(np.uint8, self._width * (17 + self._width) + 4, self._width)


class DraftProposer:
    """Draft trees for any number of requests; see the module's text.

    Request ids are integers below 2**64 chosen by the caller.
    """

    def __init__(self, config: ProposerConfig) -> None:
        self.config = config
        native = _sam.Config()
        native.full = config.mode == "full"
        native.draft_token_num = config.draft_token_num
        native.children = config.branches
        native.own_depth = config.own_depth
        native.shared_depth = config.shared_depth
        native.shared = config.share_outputs
        native.threshold = config.threshold
        native.max_request_tokens = config.max_request_tokens
        native.max_own_tokens = config.max_total_tokens
        native.max_shared_tokens = config.max_shared_tokens
        native.kill_rate = config.pause_below
        native.kill_window = config.pause_window
        self._native = _sam.Proposer(native, config.vocab_size)

    def begin(
        self,
        request: int,
        tokens: Sequence[int] | np.ndarray,
        *,
        shared_from: int | None = None,
        namespace: str = "",
    ) -> None:
        """Starts a request with the text known so far; one with the same id is forgotten first.

        Args:
            tokens: prompt and output, integers [n].
            shared_from: tokens from this index on enter the shared store (default: none).
            namespace: requests see shared outputs of their own namespace only.

        Raises:
            ValueError: if `shared_from` is past the end of `tokens`.
        """
        text = np.ascontiguousarray(tokens, dtype=np.int64)
        start = len(text) if shared_from is None else shared_from
        if not 0 <= start <= len(text):
            raise ValueError(f"shared_from must be between 0 and {len(text)}, not {start}")
        self._native.begin(request, text, start, namespace)

    def step(
        self, requests: Sequence[int] | np.ndarray, produced: Sequence[Sequence[int]]
    ) -> DraftBatch:
        """Appends what the target model produced since each request's last call, then drafts.

        All texts are extended before the first draft is made. If the last call drafted for a
        request, its new tokens are what verification accepted plus the bonus token, and the
        proposer learns from them.

        Args:
            requests: ids [n].
            produced: n sequences of tokens, possibly empty.

        Raises:
            IndexError: if a request is not known; nothing is changed then.
            ValueError: if there are not as many sequences as requests.
        """
        if len(requests) != len(produced):
            raise ValueError(f"{len(requests)} requests but {len(produced)} token sequences")
        offsets = np.zeros(len(produced) + 1, np.int64)
        np.cumsum([len(tokens) for tokens in produced], out=offsets[1:])
        flat = np.fromiter(
            (token for tokens in produced for token in tokens), np.int64, int(offsets[-1])
        )
        return self.step_flat(np.asarray(requests, np.uint64), flat, offsets)

    def step_flat(
        self,
        requests: np.ndarray,
        tokens: np.ndarray,
        offsets: np.ndarray,
        hints: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> DraftBatch:
        """`step` on arrays: uint64 ids [n], int64 tokens, int64 offsets [n + 1] into them.

        `hints` are trees that another proposer made for the same texts, merged as one more
        source that is trusted as far as it proved right: int64 tokens [n, W] and int32 parents
        [n, W], node 0 the root, a parent before its children, -2 where there is no node.
        """
        batch = DraftBatch(len(requests), self.config.draft_token_num)
        trees, parents = (None, None) if hints is None else (h.reshape(-1) for h in hints)
        self._native.step(requests, tokens, offsets, trees, parents, batch._block)
        return batch

    def append(self, request: int, tokens: Sequence[int] | np.ndarray) -> None:
        """Appends tokens without drafting.

        Raises:
            IndexError: if the request is not known.
        """
        self._native.append(request, np.ascontiguousarray(tokens, dtype=np.int64))

    def lengths(self, requests: Sequence[int] | np.ndarray) -> np.ndarray:
        """Tokens appended to each request so far (int64 [n]); -1 where it is not known, because
        it never began, has ended or was given up to stay within `max_total_tokens`."""
        ids = np.asarray(requests, np.uint64)
        out = np.empty(len(ids), np.int64)
        self._native.lengths(ids, out)
        return out

    def end(self, request: int) -> None:
        """Forgets a request; its outputs stay in the shared store. Unknown ids are ignored."""
        self._native.end(request)

    def forget(self, namespace: str) -> None:
        """Forgets the shared outputs of a namespace; its running requests share no more."""
        self._native.forget(namespace)

    def reset(self) -> None:
        """Forgets all requests, all shared outputs and all that was learned."""
        self._native.reset()

    def counters(self) -> dict[str, int]:
        """Sizes now (`requests`, `namespaces`, `own_*`, `shared_*` tokens and bytes) and totals
        since the start (`*_dropped`, `steps`, `drafted`, `accepted`, `pauses`, `recoveries`,
        `paused_steps`)."""
        return dict(self._native.counters())
