# SPDX-License-Identifier: Apache-2.0
"""The benchmark's command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from common import cli, progress, result
from common.small_models import small_model

from . import dynamo_indexer, report, tables, transport

QUICK_PARTS = ("tables", "transport", "cost")
SERVED_PARTS = ("publishing", "ordering")
PARTS = (*QUICK_PARTS, "scheduler", *SERVED_PARTS)
ROUNDS = {"scheduler": 100, "publishing": 6, "ordering": 3}
PROMPTS = {"scheduler": 12, "publishing": 4}
ORDER_REQUESTS = 12
ORDER_SPAN_S = 3.0


def arguments() -> argparse.ArgumentParser:
    """The parser of ``bench_prefix_registry.py``."""
    parser = cli.parser(
        "Measure the cross-instance prefix registry: tables beside Dynamo's radix tree, a "
        "publisher process and a reader over ZeroMQ, what publishing costs the tree, a prefill "
        "scheduler, and served prefill and decode instances with and without it.",
        epilog="Without options about a minute and without the last two; with --full a million "
        "blocks, all parts, and exit code 1 if a target is missed. Dynamo's side runs where "
        "it is installed (requirements/anchors.txt).",
    )
    parser.add_argument(
        "--parts",
        type=cli.words_of("part", PARTS),
        default=argparse.SUPPRESS,
        metavar="LIST",
        help=f"what to measure (default: {','.join(QUICK_PARTS)}; with --full all)",
    )
    parser.add_argument(
        "--blocks",
        type=cli.positive,
        default=argparse.SUPPRESS,
        metavar="N",
        help="blocks registered and published (default: 100k; with --full 1m)",
    )
    parser.add_argument(
        "--model",
        type=Path,
        metavar="DIR",
        help="of the scheduler and the servers (default: a tiny one made here, and SmolLM2-135M)",
    )
    parser.add_argument(
        "--rounds",
        type=cli.positive,
        default=argparse.SUPPRESS,
        metavar="N",
        help="turns of each side in the parts with a model "
        f"(default: {', '.join(f'{part} {count}' for part, count in ROUNDS.items())})",
    )
    parser.add_argument(
        "--prompts",
        type=cli.positive,
        default=argparse.SUPPRESS,
        metavar="N",
        help="prompts of a turn of scheduler and publishing "
        f"(default: {', '.join(f'{part} {count}' for part, count in PROMPTS.items())})",
    )
    parser.set_defaults(blocks=None, parts=None, rounds=None, prompts=None)
    cli.add_output_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the parts asked for; 1 with ``--full`` if a target is missed."""
    parts = options.parts or list(PARTS if options.full else QUICK_PARTS)
    blocks = options.blocks or (1_000_000 if options.full else 100_000)
    if blocks < tables.PROMPT_BLOCKS:
        raise cli.BenchError(f"--blocks must be at least {tables.PROMPT_BLOCKS}, a prompt's")
    rows: dict[str, list[dict[str, Any]]] = {
        name: []
        for name in (
            "tables",
            "hashing",
            "transport",
            "cost",
            "scheduler",
            "publishing",
            "ordering",
        )
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
    if "scheduler" in parts:
        from .scheduler_cost import CORES, READERS

        plan += [("scheduler", (core, readers)) for core in CORES for readers in READERS]
    with progress.steps(len(plan)) as steps:
        for kind, what in plan:
            label = ", ".join(map(str, what)) if isinstance(what, tuple) else what
            steps.start(f"{kind}: {label}")
            rows[kind].append(_measure(kind, what, blocks, requests, options))
            steps.finish()
    served = [part for part in SERVED_PARTS if part in parts]
    if served:
        rows.update(_serve(options, served))
    report.add_derived(rows["cost"])
    targets = report.findings(rows["tables"], rows["transport"], rows["publishing"])
    report.show(*rows.values(), targets)
    if options.json:
        settings = {"parts": parts, "blocks": blocks, "full": options.full, "seed": options.seed}
        settings |= {"rounds": options.rounds, "prompts": options.prompts}
        if served:
            settings["model"] = _model(options, "smollm2").name
        flat = [{"part": part, **row} for part, found in rows.items() for row in found]
        result.write(options.json, result.document("prefix_registry", settings, [*flat, *targets]))
    if options.plot:
        report.plot(options.plot, rows)
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
    if kind == "scheduler":
        from . import scheduler_cost

        core, readers = what
        return scheduler_cost.measure(
            _model(options, "tiny"),
            core=core,
            rounds=options.rounds or ROUNDS["scheduler"],
            prompts=options.prompts or PROMPTS["scheduler"],
            seed=options.seed,
            readers=readers,
        )
    from . import cost

    core, mode = what
    # The best of three: noise of a shared machine only ever adds.
    measured = [cost.measure(core, mode, requests, options.seed) for _ in range(3)]
    return min(measured, key=lambda row: row["thread_us_a_request"])


def _serve(options: argparse.Namespace, parts: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Rows of the served parts."""
    from . import ordering, pair, publishing

    sync = {"enable_cross_instance_cache_sync": True}
    prefill = {"max_total_tokens": pair.PREFILL_CAPACITY}
    few = {"cross_instance_cache_config": {"send_updates": publishing.SEND_UPDATES}}
    wanted: dict[str, tuple[str, dict]] = {"publishing": ("prefill", {**prefill, **sync, **few})}
    if "publishing" in parts:
        wanted["silent"] = ("prefill", prefill)
    for order in ordering.ORDERS if "ordering" in parts else ordering.ORDERS[:1]:
        decode = {
            **sync,
            "max_total_tokens": pair.DECODE_CAPACITY,
            "num_reserved_decode_tokens": pair.RESERVED_A_REQUEST,
            "cross_instance_cache_config": {"order": order},
        }
        wanted[order] = ("decode", decode)
    rows: dict[str, list[dict[str, Any]]] = {part: [] for part in parts}
    progress.note(f"starting {len(wanted)} servers")
    steps_count = 2 * ("publishing" in parts) + ("ordering" in parts)
    with (
        pair.servers(_model(options, "smollm2"), wanted) as running,
        progress.steps(steps_count) as steps,
    ):
        pairs = {
            name: pair.Pair(running["publishing"], server)
            for name, server in running.items()
            if name in ordering.ORDERS
        }
        first = pairs[ordering.ORDERS[0]]
        for stopped in (False, True) if "publishing" in parts else ():
            steps.start(f"publishing{', a reader stopped' if stopped else ''}")
            row = publishing.measure(
                pair.Pair(running["silent"], first.decode),
                first,
                rounds=options.rounds or ROUNDS["publishing"],
                prompts=options.prompts or PROMPTS["publishing"],
                seed=options.seed + stopped,
                stopped=stopped,
            )
            rows["publishing"].append(row)
            steps.finish()
        if "ordering" in parts:
            steps.start("order of decode's queue")
            rows["ordering"] = ordering.measure(
                pairs,
                rounds=options.rounds or ROUNDS["ordering"],
                requests=ORDER_REQUESTS,
                span_s=ORDER_SPAN_S,
                seed=options.seed,
            )
            steps.finish()
    return rows


def _model(options: argparse.Namespace, default: str) -> Path:
    if options.model is None:
        return small_model(default)
    if not (options.model / "config.json").is_file():
        raise cli.BenchError(f"--model {options.model}: no config.json, so no model folder")
    return options.model
