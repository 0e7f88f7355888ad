# SPDX-License-Identifier: Apache-2.0
"""Options and parts of ``bench_overlap.py``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from common import cli, progress, result, table
from common.small_models import small_model
from harness import Preloaded, ServerError, serve
from overlap import calibrate, decision_cost, engine, grid, loop_cost, report

LOGS = Path(__file__).resolve().parents[3] / "build" / "logs"
PARTS = ("decision", "loops", "engine", "model")
LOOP_ROWS = (1, 8)
DESCRIPTION = """\
Dynamic overlap against always (the default) and never (--disable-overlap-schedule).

Model: a discrete-event model of the scheduler's loop with host costs measured on a real
server, and the server's own decision maker, over batch size x host cost x forward time.
The oracle is the best policy that is fixed for a phase, known afterwards.

Engine: three real servers side by side, measured in turns: throughput, time to the
first token and between tokens, at several concurrencies.

Loops: the three loops in turns of a few steps of one scheduler without HTTP, which tells
differences of a percent that two server processes hide.

Decision: CPU time of one decision and of all that a step adds.

The model decides the exit code: 1 if a cell falls more than 3 % below the better fixed
policy, or the mean more than 2 % below the oracle's.
"""


def arguments() -> argparse.ArgumentParser:
    """Returns the command line."""
    parser = cli.parser(DESCRIPTION)
    parser.add_argument(
        "--part",
        choices=["all", *PARTS],
        default="all",
        help="what to measure",
    )
    parser.add_argument(
        "--calibration",
        type=cli.input_file,
        metavar="FILE",
        help="host costs of an earlier run (its --json); default: of this run's engine part, "
        "or the recorded ones",
    )
    parser.add_argument(
        "--steps",
        type=cli.positive,
        metavar="N",
        help="model: full batches' worth of tokens a cell plays (default 1500, full 2000)",
    )
    parser.add_argument(
        "--launch-ms",
        type=float,
        default=0.5,
        metavar="MS",
        help="model: host time of a launch (on a CPU it cannot be told from the forward pass)",
    )
    parser.add_argument(
        "--model", type=Path, help="engine, loops: model folder (default: tiny, made here)"
    )
    parser.add_argument(
        "--turns",
        type=cli.positive,
        metavar="N",
        help="loops: turns of each loop (default 100, full 1000)",
    )
    parser.add_argument(
        "--workloads",
        type=cli.comma_list,
        default=list(engine.WORKLOADS),
        metavar="A,B",
        help="engine: kinds of requests",
    )
    parser.add_argument(
        "--concurrency",
        type=cli.positive_list,
        metavar="N,M",
        help="engine: requests in flight (default 1,8; full 1,2,4,8,16,32)",
    )
    parser.add_argument(
        "--rounds", type=cli.positive, metavar="N", help="engine: rounds (default 2, full 8)"
    )
    parser.add_argument(
        "--starts",
        type=cli.positive,
        metavar="N",
        help="engine: times the servers are started, each with all rounds (default 1, full 4)",
    )
    parser.add_argument(
        "--tree", action="append", default=[], metavar="DIR", help="put DIR on the servers' path"
    )
    cli.add_output_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Runs the parts asked for and prints them."""
    unknown = set(options.workloads) - set(engine.WORKLOADS)
    if unknown:
        raise cli.BenchError(
            f"--workloads: unknown {', '.join(sorted(unknown))}; known are "
            + ", ".join(engine.WORKLOADS)
        )
    wants = {options.part} if options.part != "all" else set(PARTS)
    settings: dict[str, Any] = {"part": options.part, "seed": options.seed, "full": options.full}
    results: list[dict[str, Any]] = []
    calibration = calibrate.load(options.calibration) if options.calibration else None
    if "decision" in wants:
        rows = decision_cost.run()
        table.show(
            "What a step adds to the loop (target: decision at most 5 us)", report.COST, rows
        )
        results += [{"part_of": "decision", **row} for row in rows]
    if "loops" in wants:
        turns = options.turns or (1000 if options.full else 100)
        model = options.model or small_model("tiny")
        settings["turns"], rows = turns, []
        with progress.steps(len(LOOP_ROWS)) as bar:
            for size in LOOP_ROWS:
                bar.start(f"loops: {size} rows, {turns} turns each")
                rows.append(loop_cost.measure(model, size, turns, options.seed))
                bar.finish()
        table.show("Loops: time of a decode step, in turns of one scheduler", report.LOOPS, rows)
        results += [{"part_of": "loops", **row} for row in rows]
    if "engine" in wants:
        found, measured = run_engine(options, settings)
        results += found
        calibration = calibration or measured
        settings["calibration"] = measured
    code = 0
    if "model" in wants:
        settings["calibration"] = calibration = calibration or calibrate.load()
        rows, code = run_model(options, calibration, settings)
        results += [{"part_of": "model", **row} for row in rows]
    if options.json:
        result.write(options.json, result.document("overlap", settings, results))
    return code


def run_model(
    options: argparse.Namespace, calibration: dict[str, Any], settings: dict[str, Any]
) -> tuple[list[dict[str, Any]], int]:
    """Rows of all cells, and the exit code."""
    spec = grid.FULL if options.full else grid.QUICK
    steps = options.steps or (2000 if options.full else 1500)
    settings["steps"], settings["grid"] = steps, spec
    costs = calibrate.costs(calibration, options.launch_ms / 1e3)
    settings["launch_ms"] = options.launch_ms
    rows = []
    points = grid.cells(spec)
    with progress.steps(len(points)) as bar:
        for cell in points:
            bar.start(f"model: {cell.traffic}, batch {cell.rows}, x{cell.host_factor:g}")
            rows.append(grid.run_cell(cell, costs, steps, options.seed))
            bar.finish()
    summary = grid.summary(rows)
    worst = sorted(rows, key=lambda row: row["of_better"])[:8]
    table.show("Model: useful tokens a second", report.MODEL_SUMMARY, report.model_summary(summary))
    table.show("Model: the cells in which dynamic is worst", report.MODEL_CELLS, worst)
    if options.plot:
        report.heat_map(options.plot, rows)
    missed = summary["dynamic_of_oracle"] < 0.98 or summary["cells_below_97"] > 0
    return rows, cli.EXIT_FAILED if missed else cli.EXIT_OK


def run_engine(
    options: argparse.Namespace, settings: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Rows of the real servers, and the host costs they measured."""
    concurrencies = options.concurrency or ([1, 2, 4, 8, 16, 32] if options.full else [1, 8])
    count = options.rounds or (8 if options.full else 2)
    starts = options.starts or (4 if options.full else 1)
    settings |= {"concurrency": concurrencies, "rounds": count, "workloads": options.workloads}
    settings["starts"] = starts
    model = options.model or small_model("tiny")
    settings["model"] = model.name
    rows, scraped = [], []
    total = starts * count * len(options.workloads) * len(concurrencies) * len(engine.MODES)
    try:
        with Preloaded(LOGS) as preloaded, progress.steps(total) as bar:
            bar.start("engine: the servers start")
            for start in range(starts):
                with serve(
                    *engine.specs(model, options.tree),
                    log_dir=LOGS,
                    report=progress.note,
                    preloaded=preloaded,
                ) as started:
                    servers = dict(zip(engine.MODES, started, strict=True))
                    for server in started:
                        server.generate("load and compile " * 8, 8)
                    for row in engine.rounds(
                        servers, options.workloads, concurrencies, count, options.seed, start
                    ):
                        rows.append(row)
                        bar.finish()
                        if len(rows) < total:
                            done = f"{row['workload']} at {row['concurrency']}"
                            bar.start(f"engine: start {start + 1} of {starts}, after {done}")
                    scraped.append(servers["dynamic"].metrics())
    except ServerError as error:
        raise cli.BenchError(str(error)) from None
    decided = engine.decisions(scraped)
    compared = engine.compare(rows, options.seed)
    table.show("Engine: dynamic over the fixed settings", report.ENGINE, compared)
    table.show("Engine: what the dynamic server decided", report.DECISIONS, decided)
    calibration = None
    if max(concurrencies) > 1:
        calibration = calibrate.from_metrics(scraped[-1])
    return [
        *({"part_of": "engine", **row} for row in compared),
        *({"part_of": "engine runs", **row} for row in rows),
        *({"part_of": "engine decisions", **row} for row in decided),
    ], calibration
