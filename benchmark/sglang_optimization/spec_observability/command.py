# SPDX-License-Identifier: Apache-2.0
"""What watching speculative decoding costs, beside the decode step of a real server."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import cli, progress, result, table
from common.small_models import small_model
from harness import Preloaded, Server, ServerSpec, serve

from . import served
from .cost import SHAPES

LOGS = Path(__file__).resolve().parents[3] / "build" / "logs"
LIMIT = 0.01
NEW_TOKENS = 64
CONCURRENCY = (1, 4)
BATCHES = (1, 4)
FULL_BATCHES = (1, 4, 16, 64)
COLUMNS = (
    table.Column("shape", "drafts", text=True),
    table.Column("batch", "requests"),
    table.Column("us_per_step", "us a step", table.number(0)),
    table.Column("against_ms", "of a step of, ms", table.number(1)),
    table.Column("share", "share", lambda value: f"{value:.2%}"),
)
STEP_COLUMNS = (
    table.Column("arm", "server", text=True),
    table.Column("concurrency", "at a time"),
    table.Column("requests", "requests a step", table.number(1)),
    table.Column("mean_ms", "mean ms a step", table.number(1)),
    table.Column("step_ms", "least disturbed", table.number(1)),
)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    made = cli.parser(__doc__.splitlines()[0])
    cli.add_output_options(made)
    made.add_argument(
        "--scrapes",
        type=cli.output_file(".jsonl"),
        metavar="FILE",
        help="write the scrapes that --plot draws here",
    )
    return made


def run(options: argparse.Namespace) -> int:
    """Exit code 1 if counting costs more than 1 % of the mean decode step."""
    steps, scrapes = _serve(options.full)
    costs = _costs(
        1000 if options.full else 300,
        options.seed,
        FULL_BATCHES if options.full else BATCHES,
    )
    # A step of one request is the shortest: the strictest denominator for every batch.
    alone = min(row["step_ms"] for row in steps)
    by_concurrency: dict[int, float] = {}
    for row in steps:
        known = by_concurrency.get(row["concurrency"], row["step_ms"])
        by_concurrency[row["concurrency"]] = min(known, row["step_ms"])
    for row in costs:
        row["against_ms"] = by_concurrency.get(row["batch"], alone)
        row["share"] = row["us_per_step"] / 1e3 / row["against_ms"]
    table.show("Steps of a server", STEP_COLUMNS, steps)
    table.show("What counting a step costs", COLUMNS, costs)
    measured = [row for row in costs if row["batch"] in by_concurrency]
    worst = max(row["share"] for row in measured)
    print(
        f"Worst at the batch sizes served: {worst:.2%} of the mean decode step "
        f"(allowed: {LIMIT:.0%})."
    )
    if options.json:
        settings = {"full": options.full, "seed": options.seed, "limit": LIMIT}
        rows = [{"kind": "step", **r} for r in steps] + [{"kind": "cost", **r} for r in costs]
        result.write(options.json, result.document("spec_observability", settings, rows))
    if options.scrapes:
        served.write_scrapes(options.scrapes, scrapes)
    if options.plot:
        from .draw import draw

        draw(options.plot, scrapes)
    return cli.EXIT_OK if worst <= LIMIT else cli.EXIT_FAILED


def _costs(steps: int, seed: int, batches: tuple[int, ...]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        package = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), package)))
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "spec_observability.cost",
                *map(str, (steps, seed, *batches)),
            ],
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": folder, "PYTHONPATH": path},
            check=False,
            stdout=subprocess.PIPE,
            text=True,
        )
    if done.returncode:
        raise cli.BenchError("timing the counting failed; its error is above")
    rows = json.loads(done.stdout.splitlines()[-1])
    assert {row["shape"] for row in rows} == set(SHAPES)
    return rows


def _serve(full: bool) -> tuple[list[dict[str, Any]], list[served.Scrape]]:
    """Steps of each server, and the scrapes of the last one."""
    arms = dict(served.ARMS)
    if importlib.util.find_spec("sgl_kernel_ext") is None:
        progress.note("sgl-kernel-ext is not installed: without SAM")
        del arms["SAM"]
    if not full:
        arms = dict(list(arms.items())[-1:])
    rows: list[dict[str, Any]] = []
    scrapes: list[served.Scrape] = []
    spec = ServerSpec(small_model("smollm2"), flags=served.BASE, ready_timeout_s=600)
    with Preloaded(LOGS) as preloaded:
        for arm, flags in arms.items():
            name = f"spec-observability-{arm.lower()}"
            one = replace(spec.with_flags(**flags), name=name)
            with serve(one, log_dir=LOGS, report=progress.note, preloaded=preloaded) as (server,):
                measured, scrapes = _measure(server, arm)
                rows += measured
    return rows, scrapes


def _measure(server: Server, arm: str) -> tuple[list[dict[str, Any]], list[served.Scrape]]:
    """Steps of one server at each concurrency, and scrapes taken meanwhile."""
    rows: list[dict[str, Any]] = []
    scrapes: list[served.Scrape] = []
    server.generate("warm up " * 20, max_new_tokens=8)
    for concurrency in CONCURRENCY:
        requests = 2 * concurrency + 2
        with served.Recorder(server) as recorder:
            interval = served.drive_for(server, concurrency, requests, NEW_TOKENS)
        began = scrapes[-1].at_s + 1 if scrapes else 0.0
        scrapes += [served.Scrape(began + s.at_s, s.text) for s in recorder.scrapes]
        mean = served.step_ms(interval)
        rows.append(
            {
                "arm": arm,
                "concurrency": concurrency,
                "requests": served.batch_size(interval),
                "mean_ms": mean,
                "step_ms": min(mean, served.best_step_ms(recorder.scrapes)),
            }
        )
    return rows, scrapes
