# SPDX-License-Identifier: Apache-2.0
"""What to change, in words, with the thresholds that lead to it.

A step of speculation gives m tokens a request (the bonus token included) and takes
the time of verification and o times as much for drafting. Taking verification to
cost what a plain decode step does, speculation wins while m > 1 + o. It costs more
where the batch is large enough to be bound by computation: then the wins below are
upper bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.observability.spec_report.analysis import Analysis


@dataclass(frozen=True)
class Thresholds:
    """When a verdict is given; see ``docs/observability.md``."""

    # Request steps below which nothing is said about acceptance.
    min_request_steps: int = 100
    # Of the tokens that speculation gains, the share that drafting may cost in time.
    draft_share: float = 0.5
    # A position accepted less often than this by the steps that offer it is not
    # worth its draft, ...
    position_rate: float = 0.1
    # ... where positions beyond it make up this share of all drafts.
    position_share: float = 0.1
    # A width is too large if less than this share of it is filled with drafts.
    width_filled: float = 0.6
    # Or if fewer drafts than this share are accepted while 95 % of the request steps
    # accept less than half of what is offered.
    accept_rate: float = 0.1
    # Reserved KV slots beyond need, by all that are reserved.
    reserve_unneeded: float = 0.75
    # Drafts thrown away because their request had ended, by all drafts.
    discarded: float = 0.1


@dataclass(frozen=True)
class Verdict:
    """``level`` is "bad" (speculation loses), "warning" or "ok"."""

    level: str
    topic: str
    text: str


def judge(found: Analysis, limits: Thresholds = Thresholds()) -> list[Verdict]:
    """Verdicts, the worst first; one "ok" if there is nothing to say."""
    if found.request_steps < limits.min_request_steps:
        return [
            Verdict(
                "warning",
                "traffic",
                f"Only {found.request_steps:.0f} request steps were seen; below "
                f"{limits.min_request_steps} no verdict is given. Choose a longer "
                "--interval.",
            )
        ]
    checks = (_draft_time, _positions, _width, _discarded, _reserve)
    verdicts = [v for check in checks if (v := check(found, limits)) is not None]
    verdicts.sort(key=lambda v: v.level != "bad")
    return verdicts or [
        Verdict(
            "ok",
            "speculation",
            f"Drafting takes {_overhead(found):.0%} of the time of verification and "
            f"gives {found.tokens_per_step:.2f} tokens a step.",
        )
    ]


def _overhead(found: Analysis) -> float:
    """Time of drafting by that of verification."""
    return found.overhead_seconds / found.verify_seconds if found.verify_seconds else 0


def _draft_time(found: Analysis, limits: Thresholds) -> Verdict | None:
    if not found.verify_seconds:
        return None
    overhead, gain = _overhead(found), found.tokens_per_step - 1
    slowest = max(
        (s for s in found.stages if s.name not in ("verify", "draft_prefill")),
        key=lambda s: s.seconds,
        default=None,
    )
    where = (
        f" Most of it is {slowest.name} ({slowest.mean_ms:.3g} ms)." if slowest else ""
    )
    spent = (
        f"Drafting takes {overhead:.0%} of the time of verification and gains "
        f"{gain:.2f} tokens a step."
    )
    if overhead >= gain:
        return Verdict(
            "bad",
            "draft too slow",
            f"{spent} It costs more than it gains: draft fewer tokens, use a cheaper "
            f"proposer, or turn speculation off.{where}",
        )
    if overhead > limits.draft_share * gain:
        return Verdict(
            "warning",
            "draft too slow",
            f"{spent} More than {limits.draft_share:.0%} of the gain goes into "
            f"drafting: draft fewer tokens or use a cheaper proposer.{where}",
        )
    return None


def _positions(found: Analysis, limits: Thresholds) -> Verdict | None:
    good = 0
    for position in found.positions:
        if position.rate < limits.position_rate:
            break
        good = position.position
    beyond = [p for p in found.positions if p.position > good]
    drafted = sum(p.drafted for p in beyond)
    if not drafted or drafted < limits.position_share * found.drafted:
        return None
    next_one = beyond[0]
    steps = good or 1
    return Verdict(
        "bad" if good == 0 else "warning",
        "acceptance too low",
        f"Beyond position {good} acceptance is too low: position {next_one.position} "
        f"is accepted in {next_one.rate:.1%} of the steps that offer it (threshold "
        f"{limits.position_rate:.0%}), and {drafted / found.drafted:.0%} of all drafts "
        f"lie there. Draft to depth {steps}: --speculative-num-steps {steps}, or for "
        "NGRAM a smaller --speculative-num-draft-tokens"
        + (", or a better draft model or corpus." if good == 0 else "."),
    )


def _width(found: Analysis, limits: Thresholds) -> Verdict | None:
    filled = found.drafted_per_step + 1
    if found.width and filled < limits.width_filled * found.width:
        wanted = max(2, round(filled))
        return Verdict(
            "warning",
            "width too large",
            f"Verification is {found.width:.1f} tokens wide, but {filled:.1f} of them "
            f"(root included) are used on average (threshold "
            f"{limits.width_filled:.0%}): try --speculative-num-draft-tokens {wanted}.",
        )
    if found.accept_rate < limits.accept_rate and found.drafted_per_step > 2 * max(
        1.0, found.accepted_p95
    ):
        return Verdict(
            "warning",
            "width too large",
            f"{found.accept_rate:.1%} of the drafts are accepted (threshold "
            f"{limits.accept_rate:.0%}): 95 % of the steps accept at most "
            f"{found.accepted_p95:.0f} of {found.drafted_per_step:.1f}. At batch sizes "
            "bound by computation a smaller --speculative-num-draft-tokens (at least "
            f"{found.accepted_p95 + 2:.0f}) is faster.",
        )
    return None


def _discarded(found: Analysis, limits: Thresholds) -> Verdict | None:
    everything = found.drafted + found.discarded
    if not everything or found.discarded <= limits.discarded * everything:
        return None
    return Verdict(
        "warning",
        "drafts discarded",
        f"{found.discarded / everything:.0%} of the drafts were made for requests that "
        "had ended or were retracted: outputs are very short, or the KV pool is too "
        "small (see sglang:num_retracted_requests_total).",
    )


def _reserve(found: Analysis, limits: Thresholds) -> Verdict | None:
    if not found.reserved or found.unneeded <= limits.reserve_unneeded * found.reserved:
        return None
    per_request = found.unneeded / found.request_steps
    return Verdict(
        "warning",
        "reserve too large",
        f"{found.unneeded / found.reserved:.0%} of the KV slots reserved beyond "
        f"committed tokens are not needed by the next step ({per_request:.0f} slots a "
        "request): a smaller width or page size frees them.",
    )
