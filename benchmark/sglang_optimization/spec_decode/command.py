# SPDX-License-Identifier: Apache-2.0
"""The command line of ``bench_spec_decode.py``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import cli, progress, result

from . import proposers, report, scale, targets
from .proposers import DEFAULT
from .replay import BATCH, Outcome, batch_step_ms, geometric_mean, replay
from .samples import Sample, load_tokenizer, read_samples
from .workloads import WORKLOADS, built_in

EPILOG = """\
A width counts the root: width 12 drafts at most 11 tokens a step. Greedy outputs are replayed in
the order of the file, so sharing between requests is somewhat flattered; all proposers that share
see the same. "upstream" verifies its full width whatever it found, so its accepted/drafted says so.

examples:
  %(prog)s                                        built-in workloads, small
  %(prog)s --replay outputs.jsonl.gz              60 requests a set, width 12
  %(prog)s --replay outputs.jsonl.gz --full       all requests, widths 4, 8, 12 and 16
  %(prog)s --replay outputs.jsonl.gz --check      exit code 1 if a target is missed
  %(prog)s --proposers full@0.05,full@0.15,arctic --replay outputs.jsonl.gz
  %(prog)s --scale                                cost against the length of hostile texts
  %(prog)s --engine                               a real server, with and without
"""

QUICK_REQUESTS = 60
FULL_WIDTHS = [4, 8, 12, 16]
BATCH_SAMPLES = 160


def arguments() -> argparse.ArgumentParser:
    """The parser of ``bench_spec_decode.py``."""
    parser = cli.parser("Replay outputs through draft proposers: acceptance and cost.", EPILOG)
    what = parser.add_argument_group("what to replay")
    what.add_argument(
        "--replay",
        type=cli.input_file,
        metavar="FILE",
        help="prompts with outputs, text or token ids (.jsonl, .jsonl.gz)",
    )
    what.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="model folder for text (default: SmolLM2)"
    )
    what.add_argument(
        "--workloads",
        type=cli.words_of("workload", WORKLOADS),
        default=None,
        metavar="A,B",
        help=f"built-in workloads: {', '.join(WORKLOADS)} (default: all without --replay)",
    )
    what.add_argument("--sets", type=cli.comma_list, metavar="A,B", help="only these sets")
    what.add_argument(
        "--requests",
        type=cli.positive,
        metavar="N",
        help=f"requests a set, at most (default: {QUICK_REQUESTS}; all with --full)",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--proposers",
        type=cli.comma_list,
        default=None,
        metavar="A,B",
        help="; ".join(f"{name}: {text}" for name, (_, text) in proposers.PROPOSERS.items())
        + ". NAME@P drafts nothing less probable than P (of the path; arctic: of the token)",
    )
    how.add_argument(
        "--widths",
        type=cli.positive_list,
        metavar="N,N",
        help="nodes of a draft tree, the root included (default: 12; 4,8,12,16 with --full)",
    )
    how.add_argument(
        "--repeats",
        type=cli.positive,
        default=1,
        metavar="N",
        help="measure N times in turn and keep the least times (--engine: rounds)",
    )
    how.add_argument(
        "--check",
        action="store_true",
        help="compare full and fast with the project's targets (width 12, arctic in the run)",
    )
    instead = how.add_mutually_exclusive_group()
    instead.add_argument(
        "--scale",
        action="store_true",
        help="measure instead how cost grows with hostile texts of up to 128k tokens "
        "(default proposers: full, fast and arctic)",
    )
    instead.add_argument(
        "--engine",
        action="store_true",
        help="measure a real server with SmolLM2 instead: plain, upstream NGRAM, and this one",
    )
    cli.add_output_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Runs what the options ask for; returns the exit code."""
    if options.engine:
        from . import engine

        return engine.run(options)
    names = _available(options.proposers or (scale.PROPOSERS if options.scale else DEFAULT))
    if options.scale:
        return scale.run(options, names)
    sets = _sets(options)
    widths = options.widths or (FULL_WIDTHS if options.full else [12])
    if max(widths) > 64:
        raise cli.BenchError(f"width {max(widths)} is more than 64, the most a tree can hold")
    rows: list[dict[str, Any]] = []
    with progress.steps(len(widths) * (len(sets) + 1) * options.repeats) as bar:
        for width in widths:
            rows += _measure(names, width, sets, options.repeats, bar)
    report.show(rows, widths)
    if options.json:
        settings = {
            "sets": {name: len(samples) for name, samples in sets.items()},
            "batch": BATCH,
            "repeats": options.repeats,
            "seed": options.seed,
        }
        result.write(options.json, result.document("spec_decode", settings, rows))
    if options.plot:
        report.plot(options.plot, rows)
    return targets.check(rows) if options.check else cli.EXIT_OK


def _available(names: Sequence[str]) -> list[str]:
    kept = []
    for name in names:
        reason = proposers.missing(proposers.parse(name)[0])
        if reason is None:
            kept.append(name)
        else:
            progress.note(f"left out: {name} {reason}")
    if not kept:
        raise cli.BenchError("none of the proposers can run here")
    return kept


def _sets(options: argparse.Namespace) -> dict[str, list[Sample]]:
    limit = options.requests or (None if options.full else QUICK_REQUESTS)
    sets: dict[str, list[Sample]] = {}
    if options.replay:
        sets.update(read_samples(options.replay, lambda: load_tokenizer(options.tokenizer), limit))
    chosen = options.workloads
    if chosen is None:
        chosen = [] if options.replay else list(WORKLOADS)
    for name in chosen:
        sets[name] = built_in(name, limit or 200, options.seed)
    if options.sets:
        unknown = [name for name in options.sets if name not in sets]
        if unknown:
            raise cli.BenchError(f"no set {unknown[0]!r}; there are {', '.join(sets)}")
        sets = {name: sets[name] for name in options.sets}
    return sets


def _measure(
    names: Sequence[str],
    width: int,
    sets: dict[str, list[Sample]],
    repeats: int,
    bar: progress.Steps,
) -> list[dict[str, Any]]:
    """One row a proposer and set, and one of all sets with the cost of a step of a batch.

    Proposers take turns set by set, so that a slow minute meets all of them.
    """
    outcomes: dict[str, list[Outcome]] = {name: [] for name in names}
    batches: dict[str, list[float | None]] = {name: [] for name in names}
    mixed = [s for group in sets.values() for s in group[: BATCH_SAMPLES // len(sets) + 1]]
    if len(mixed) <= BATCH:
        mixed = max(sets.values(), key=len)
    for number in range(repeats):
        for place, (dataset, samples) in enumerate(sets.items()):
            bar.start(f"width {width}, {dataset}")
            for name in names:
                outcome = replay(proposers.create(name, width), dataset, samples)
                if number:
                    outcomes[name][place].fastest(outcome)
                else:
                    outcomes[name].append(outcome)
            bar.finish()
        bar.start(f"width {width}, {BATCH} at a time")
        for name in names:
            batches[name].append(batch_step_ms(proposers.create(name, width), mixed, BATCH))
        bar.finish()
    rows = []
    for name in names:
        total = Outcome(name, report.ALL_SETS, width)
        for outcome in outcomes[name]:
            total.add(outcome)
        row = total.row()
        row["mal"] = geometric_mean([outcome.mal for outcome in outcomes[name]])
        row["batch_step_ms"] = min((b for b in batches[name] if b is not None), default=None)
        rows += [*(outcome.row() for outcome in outcomes[name]), row]
    return rows
