# SPDX-License-Identifier: Apache-2.0
"""The benchmark's command line."""

from __future__ import annotations

import argparse
from typing import Any

from common import cli, progress, result

from . import dynamo_indexer, report, tables, transport

PARTS = ("tables", "transport", "cost")


def arguments() -> argparse.ArgumentParser:
    """The parser of ``bench_prefix_registry.py``."""
    parser = cli.parser(
        "Measure the cross-instance prefix registry: tables beside Dynamo's radix tree, a "
        "publisher process and a reader over ZeroMQ, and what publishing costs the scheduler.",
        epilog="Without options about a minute; with --full a million blocks, and exit code 1 if "
        "a target is missed. Dynamo's side runs where it is installed (requirements/anchors.txt).",
    )
    parser.add_argument(
        "--parts",
        type=cli.words_of("part", PARTS),
        default=",".join(PARTS),
        metavar="LIST",
        help="what to measure",
    )
    parser.add_argument(
        "--blocks",
        type=cli.positive,
        default=argparse.SUPPRESS,
        metavar="N",
        help="blocks registered and published (default: 100k; with --full 1m)",
    )
    parser.set_defaults(blocks=None)
    cli.add_output_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the parts asked for; 1 with ``--full`` if a target is missed."""
    parts = options.parts if isinstance(options.parts, list) else options.parts.split(",")
    blocks = options.blocks or (1_000_000 if options.full else 100_000)
    if blocks < tables.PROMPT_BLOCKS:
        raise cli.BenchError(f"--blocks must be at least {tables.PROMPT_BLOCKS}, a prompt's")
    rows: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("tables", "hashing", "transport", "cost")
    }
    arms = tables.available() if "tables" in parts else []
    if "tables" in parts and "dynamo" not in arms:
        progress.note("Dynamo is not installed; see requirements/anchors.txt")
    flushes = (64, 1024) if options.full else (64,)
    requests = 2000 if options.full else 300
    plan: list[tuple[str, Any]] = [("tables", arm) for arm in arms]
    plan += [("hashing", size) for size in (1, 16)] if "tables" in parts else []
    if "transport" in parts:
        arms = ["registry", *(["dynamo"] if dynamo_indexer.installed() else [])]
        plan += [("transport", (arm, flush)) for flush in flushes for arm in arms]
    if "cost" in parts:
        from .cost import MODES

        # Modes take turns, so that the machine's other load meets all alike.
        plan += [("cost", (core, mode)) for core in ("python", "rust") for mode in MODES]
    with progress.steps(len(plan)) as steps:
        for kind, what in plan:
            label = ", ".join(map(str, what)) if isinstance(what, tuple) else what
            steps.start(f"{kind}: {label}")
            rows[kind].append(_measure(kind, what, blocks, requests, options))
            steps.finish()
    report.add_derived(rows["cost"])
    targets = report.findings(rows["tables"], rows["transport"])
    report.show(*rows.values(), targets)
    if options.json:
        settings = {"parts": parts, "blocks": blocks, "full": options.full, "seed": options.seed}
        flat = [{"part": part, **row} for part, found in rows.items() for row in found]
        result.write(options.json, result.document("prefix_registry", settings, [*flat, *targets]))
    if options.plot:
        report.plot(options.plot, rows["tables"], rows["cost"])
    return int(options.full and not all(target["met"] for target in targets))


def _measure(
    kind: str, what: Any, blocks: int, requests: int, options: argparse.Namespace
) -> dict[str, Any]:
    if kind == "tables":
        made = tables.Blocks(blocks, options.seed)
        return tables.measure(what, made, 5000 if options.full else 2000, options.seed)
    if kind == "hashing":
        return tables.hashing(what, 8192, options.seed)
    if kind == "transport":
        arm, flush = what
        if arm == "dynamo":
            return dynamo_indexer.measure(blocks, flush, options.seed)
        return transport.measure(blocks, flush, 500 if options.full else 200)
    from . import cost

    core, mode = what
    # The best of three: noise of a shared machine only ever adds.
    measured = [cost.measure(core, mode, requests, options.seed) for _ in range(3)]
    return min(measured, key=lambda row: row["thread_us_a_request"])
