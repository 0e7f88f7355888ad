#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cache warming on a real server (SmolLM2-135M on the CPU platform).

First requests: a server each for no warming (cold), hints only (tree) and computed
KV (kv). Once everything listed is warm, every listed prompt is asked for with one new
line: one after the other (share of prompt tokens from the cache, TTFT, and TTFT over
cold's), then, from an empty or newly warmed cache, several requests a prompt at once.
All answers must be the same in the three.

Cost to real traffic: on one server, open-loop traffic that shares nothing, in turns
without anything to warm and with warming always busy (a prompt that became warm is
replaced through the endpoint). p50 and p99 TTFT of both, and how long one step takes:
the most that a request can be held up.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import cli, progress, result, stats, table
from harness import Result, ServerError, ServerSpec, serve, summarize
from warming import measure, prompts
from warming.prompts import Traffic

ROOT = Path(__file__).resolve().parents[2]
MODES = ("cold", "tree", "kv")

FIRST_COLUMNS = [
    table.Column("mode", "mode", text=True),
    table.Column("hit_ratio", "tokens from cache", table.percent),
    table.Column("ttft_p50_s", "TTFT p50 (s)", table.number(3)),
    table.Column("ttft_max_s", "TTFT max (s)", table.number(3)),
    table.Column("ttft_of_cold", "TTFT p50 / cold", table.ratio),
    table.Column("burst_hit_ratio", "burst: tokens from cache", table.percent),
    table.Column("burst_ttft_mean_s", "burst: TTFT mean (s)", table.number(3)),
    table.Column("same_answers", "answers as cold", text=True),
]
COST_COLUMNS = [
    table.Column("warming", "warming", text=True),
    table.Column("requests", "requests", table.number(0)),
    table.Column("ttft_p50_s", "TTFT p50 (s)", table.number(3)),
    table.Column("ttft_p99_s", "TTFT p99 (s)", table.number(3)),
    table.Column("p50_ratio", "p50 ratio", table.ratio),
    table.Column("p99_ratio", "p99 ratio", table.ratio),
    table.Column("warmed_tokens", "tokens warmed", table.number(0)),
    table.Column("step_s", "mean step (s)", table.number(3)),
]


def arguments() -> argparse.ArgumentParser:
    """Returns the command line."""
    parser = cli.parser(__doc__ or "")
    parser.add_argument("--model", type=Path, help="model folder (default: SmolLM2, made here)")
    parser.add_argument(
        "--prompts", type=cli.positive, default=6, metavar="N", help="listed prompts"
    )
    parser.add_argument(
        "--prompt-words", type=cli.positive, default=800, metavar="N", help="length of each"
    )
    parser.add_argument(
        "--chunk-size", type=cli.positive, default=32, metavar="N", help="tokens of a step"
    )
    parser.add_argument(
        "--rate", type=float, default=0.5, metavar="R", help="traffic: requests a second"
    )
    parser.add_argument(
        "--traffic-words",
        type=cli.positive_list,
        default=[100, 400],
        metavar="MIN,MAX",
        help="traffic: words of a prompt, uniform",
    )
    parser.add_argument(
        "--requests", type=cli.positive, help="traffic: requests a turn (default 30, full 100)"
    )
    parser.add_argument(
        "--only", choices=["first", "cost"], help="measure one of the two parts only"
    )
    parser.add_argument(
        "--tree", action="append", default=[], metavar="DIR", help="put DIR on the servers' path"
    )
    cli.add_output_options(parser)
    return parser


def specs(options: argparse.Namespace, model: Path, file: Path) -> dict[str, ServerSpec]:
    """A server for each mode; they differ in the warming flags only."""
    base = ServerSpec(
        model,
        {
            "dtype": "float32",
            "max_total_tokens": 32768,
            "chunked_prefill_size": 1024,
            "schedule_policy": "lpm",
            "enable_metrics": True,
            "random_seed": 1,
            # What stands idle must leave the cores to the client and to other servers.
            "sleep_on_idle": True,
        },
        name="cold",
        pythonpath=options.tree,
    )
    warm = base.with_flags(cache_warming_prompts=str(file))
    kv = warm.with_flags(cache_warming_chunk_size=options.chunk_size)
    tree = warm.with_flags(cache_warming_mode="tree")
    return {"cold": base, "tree": tree, "kv": kv}


def first_requests(
    options: argparse.Namespace, servers: dict[str, ServerSpec], listed: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Rows of the first part."""
    rng = random.Random(options.seed)
    single = prompts.first_requests(rng, listed, 1, 8)
    burst = prompts.first_requests(rng, listed, 3, 4)
    rows: list[dict[str, Any]] = []
    answers: dict[str, list[list[int]]] = {}
    with progress.steps(len(MODES)) as bar:
        for mode in MODES:
            bar.start(f"first requests: {mode}")
            with serve(servers[mode], log_dir=ROOT / "build" / "logs") as (server,):
                # Compile and load what the first requests of a process pay for.
                server.generate("warm up the process " * 40, 4)
                server.flush_cache()
                if mode != "cold":
                    measure.wait_warm(server)
                one = measure.one_by_one(server, single)
                server.flush_cache()
                if mode != "cold":
                    measure.wait_warm(server)
                many = measure.at_once(server, burst)
            answers[mode] = [r.output_ids for r in [*one, *many]]
            rows.append(first_row(mode, one, many, rows, answers))
            bar.finish()
    return rows


def first_row(
    mode: str,
    one: Sequence[Result],
    many: Sequence[Result],
    before: Sequence[dict[str, Any]],
    answers: dict[str, list[list[int]]],
) -> dict[str, Any]:
    """One mode's row; the first row is cold's."""
    ttft = [r.ttft_s for r in one if r.ttft_s is not None]
    summary, burst = summarize(one), summarize(many)
    cold = before[0]["ttft_p50_s"] if before else summary.ttft_p50_s
    return {
        "mode": mode,
        "hit_ratio": summary.hit_ratio,
        # Of the listed prompt alone: the new line cannot be cached.
        "least_cached_tokens": min(r.cached_tokens for r in one),
        "prompt_tokens": stats.mean([r.prompt_tokens for r in one]),
        "ttft_p50_s": summary.ttft_p50_s,
        "ttft_max_s": max(ttft),
        "ttft_of_cold": summary.ttft_p50_s / cold,
        "burst_hit_ratio": burst.hit_ratio,
        "burst_ttft_mean_s": burst.ttft_mean_s,
        "same_answers": "yes" if answers[mode] == answers["cold"] else "no",
    }


def cost(options: argparse.Namespace, spec: ServerSpec) -> list[dict[str, Any]]:
    """Rows of the second part: turns without and with warming, on one server."""
    count = options.requests or (100 if options.full else 30)
    low, high = options.traffic_words[0], options.traffic_words[-1]
    traffic = Traffic(options.rate, count, (low, high), 4)
    turns = 3 if options.full else 2
    samples: dict[str, list[Result]] = {"idle": [], "busy": []}
    warmed = seconds = 0.0
    with serve(spec, log_dir=ROOT / "build" / "logs") as (server,):
        with progress.steps(2 * turns) as bar:
            server.generate("warm up the process " * 40, 4)
            for turn in range(turns):
                requests = traffic.make(random.Random(f"{options.seed}-{turn}"))
                for kind in ("idle", "busy") if turn % 2 == 0 else ("busy", "idle"):
                    bar.start(f"traffic, warming {kind}")
                    measure.remove_all(server)
                    server.flush_cache()
                    if kind == "idle":
                        samples[kind] += measure.open_loop(server, requests)
                    else:
                        with server.measured() as change:
                            with measure.always_warming(server, options.prompt_words, turn):
                                samples[kind] += measure.open_loop(server, requests)
                        warmed += change[0].total("sglang:cache_warming_tokens_total")
                        seconds += change[0].total("sglang:cache_warming_seconds_total")
                    bar.finish()
    rows = []
    idle = summarize(samples["idle"])
    for kind, results in samples.items():
        summary = summarize(results)
        rows.append(
            {
                "warming": kind,
                "requests": len(results),
                "ttft_p50_s": summary.ttft_p50_s,
                "ttft_p99_s": summary.ttft_p99_s,
                "p50_ratio": summary.ttft_p50_s / idle.ttft_p50_s,
                "p99_ratio": summary.ttft_p99_s / idle.ttft_p99_s,
                "warmed_tokens": warmed if kind == "busy" else None,
                "step_s": (
                    seconds / (warmed / options.chunk_size) if kind == "busy" and warmed else None
                ),
            }
        )
    return rows


def run(options: argparse.Namespace) -> int:
    """Measure, show, and say whether the answers agree."""
    if options.rate <= 0:
        raise cli.BenchError(f"--rate must be above 0, got {options.rate:g}")
    model = options.model or _smollm2()
    listed = prompts.listed_prompts(
        random.Random(options.seed), options.prompts, options.prompt_words, "listed"
    )
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        file = prompts.write_file(Path(folder) / "prompts.json", listed)
        servers = specs(options, model, file)
        try:
            if options.only != "cost":
                first = first_requests(options, servers, listed)
                table.show(
                    f"First requests: {options.prompts} prompts of about "
                    f"{options.prompt_words} tokens, one new line each",
                    FIRST_COLUMNS,
                    first,
                )
                rows += [{"part": "first", **row} for row in first]
            if options.only != "first":
                prompts.write_file(file, [])
                paid = cost(options, servers["kv"])
                low, high = options.traffic_words[0], options.traffic_words[-1]
                table.show(
                    f"Open-loop traffic: {options.rate:g} requests/s (Poisson), {low} to "
                    f"{high} words, 4 new tokens; steps of {options.chunk_size} tokens",
                    COST_COLUMNS,
                    paid,
                )
                rows += [{"part": "cost", **row} for row in paid]
        except ServerError as error:
            raise cli.BenchError(str(error)) from error
    if options.json:
        settings = {
            key: str(value) if isinstance(value, Path) else value
            for key, value in vars(options).items()
            if key not in ("json", "plot", "tree", "model")
        }
        result.write(options.json, result.document("cache_warming", settings, rows))
    if options.plot:
        _plot(options.plot, rows)
    different = [row["mode"] for row in rows if row.get("same_answers") == "no"]
    if different:
        print(f"answers differ from cold's: {', '.join(different)}")
    return cli.EXIT_FAILED if different else cli.EXIT_OK


def _smollm2() -> Path:
    import sys

    sys.path.insert(0, str(ROOT / "tools"))
    from models import smollm2

    return smollm2.ensure("float32")


def _plot(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    from common import plot

    first = [row for row in rows if row["part"] == "first"]
    paid = [row for row in rows if row["part"] == "cost"]
    with plot.figure(path, 1, 2) as (_, axes):
        if first:
            axes[0][0].bar([r["mode"] for r in first], [r["ttft_p50_s"] for r in first])
            axes[0][0].set(title="First requests", ylabel="TTFT p50 (s)")
        if paid:
            axes[0][1].bar([r["warming"] for r in paid], [r["ttft_p99_s"] for r in paid])
            axes[0][1].set(title="Real traffic by warming", ylabel="TTFT p99 (s)")


if __name__ == "__main__":
    raise SystemExit(cli.main(run, arguments()))
