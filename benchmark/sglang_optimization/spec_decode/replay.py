# SPDX-License-Identifier: Apache-2.0
"""Greedy replay of one set of texts through one proposer, a request at a time.

Times are processor times of all threads: other work on the machine disturbs them less than it does
wall time, but it does (shared caches, two threads of one core).
Mean accepted length (MAL) = output tokens / (verification steps + prefills): a prefill gives one
token, a verification what it accepts and one more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import process_time

from .drafts import Proposer, accepted
from .samples import Sample

BATCH = 64  # requests that decode together in the measured step

_SUMS = (
    "requests",
    "prompt_tokens",
    "output_tokens",
    "steps",
    "drafted",
    "accepted",
    "begin_s",
    "update_s",
    "propose_s",
    "sizes",
)


@dataclass
class Outcome:
    """Sums over the requests of a set; times in seconds of processor time."""

    proposer: str
    dataset: str
    width: int
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    begin_s: float = 0.0
    update_s: float = 0.0
    propose_s: float = 0.0
    sizes: list[float] = field(default_factory=list)  # bytes a token when a request ends

    @property
    def mal(self) -> float:
        return self.output_tokens / (self.steps + self.requests)

    @property
    def accept_rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def bytes_per_token(self) -> float | None:
        return sum(self.sizes) / len(self.sizes) if self.sizes else None

    def fastest(self, other: Outcome) -> None:
        """Keeps the least times of this and a repetition: the one that was disturbed least."""
        for name in ("begin_s", "update_s", "propose_s"):
            setattr(self, name, min(getattr(self, name), getattr(other, name)))

    def add(self, other: Outcome) -> None:
        """Adds another set's sums to these."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def row(self) -> dict:
        """The columns of the result table."""
        return {
            "set": self.dataset,
            "proposer": self.proposer,
            "width": self.width,
            "requests": self.requests,
            "mal": self.mal,
            "accept_rate": self.accept_rate,
            "drafted_per_step": self.drafted / self.steps if self.steps else None,
            "prompt_tokens_per_s": self.prompt_tokens / self.begin_s if self.begin_s else None,
            "update_us": 1e6 * self.update_s / self.steps if self.steps else None,
            "propose_us": 1e6 * self.propose_s / self.steps if self.steps else None,
            "bytes_per_token": self.bytes_per_token,
        }


def replay(proposer: Proposer, dataset: str, samples: Sequence[Sample]) -> Outcome:
    """Decodes every sample as greedy verification of the drafts would."""
    out = Outcome(proposer.name, dataset, proposer.width)
    for request, sample in enumerate(samples):
        _one(proposer, request, sample, out)
    return out


def _one(proposer: Proposer, request: int, sample: Sample, out: Outcome) -> None:
    text, at, end = sample.text, sample.prompt, len(sample.text)
    truth = text.tolist()
    began = process_time()
    proposer.begin(request, text[:at])
    out.begin_s += process_time() - began
    produced = 1  # by the prefill
    while True:
        began = process_time()
        proposer.update([request], [text[at : at + produced]])
        updated = process_time()
        at += produced
        out.update_s += updated - began
        if at >= end:
            break
        updated = process_time()
        proposed = proposer.propose([request])
        out.propose_s += process_time() - updated
        (draft,) = proposer.drafts(proposed)
        n = accepted(draft, truth[at:end])
        out.steps += 1
        out.drafted += len(draft.tokens)
        out.accepted += n
        produced = min(n + 1, end - at)
    stored = proposer.stored()
    if stored and stored[1]:
        out.sizes.append(stored[0] / stored[1])
    proposer.end(request)
    out.requests += 1
    out.prompt_tokens += sample.prompt
    out.output_tokens += sample.outputs


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values))


def batch_step_ms(proposer: Proposer, samples: Sequence[Sample], batch: int) -> float | None:
    """Mean time of one decoding step (update and proposals) of ``batch`` requests that decode
    together, in milliseconds; a request that finishes is replaced by the next sample."""
    waiting = list(enumerate(samples))
    running: dict[int, tuple[Sample, int, int]] = {}  # request -> sample, at, produced
    spent, steps = 0.0, 0
    while True:
        while waiting and len(running) < batch:
            request, sample = waiting.pop(0)
            proposer.begin(request, sample.text[: sample.prompt])
            running[request] = (sample, sample.prompt, 1)
        if len(running) < batch:
            break
        requests = list(running)
        tokens = [s.text[at : at + produced] for s, at, produced in running.values()]
        began = process_time()
        proposer.update(requests, tokens)
        proposed = proposer.propose(requests)
        spent += process_time() - began
        steps += 1
        for request, draft in zip(requests, proposer.drafts(proposed), strict=True):
            sample, at, produced = running[request]
            at += produced
            left = sample.text[at:].tolist()
            if not left:
                proposer.end(request)
                del running[request]
            else:
                running[request] = (sample, at, min(accepted(draft, left) + 1, len(left)))
    for request in running:
        proposer.end(request)
    return 1e3 * spent / steps if steps else None
