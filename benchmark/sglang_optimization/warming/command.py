# SPDX-License-Identifier: Apache-2.0
"""The benchmark's command line: options to servers, servers to rows."""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

from common import cli, progress, result
from common.small_models import small_model
from harness import Preloaded, Server, ServerError, ServerSpec, serve

from . import cost, first, measure, prompts, report

ROOT = Path(__file__).resolve().parents[3]
LOGS = ROOT / "build" / "logs"
MODES = ("cold", "tree", "kv")
DESCRIPTION = """\
Cache warming on a real server (SmolLM2-135M on the CPU platform).

First requests: a server each without warming (cold), with hints (tree) and with computed KV
(kv). Once everything listed is warm, every listed prompt is asked for with one new line: one
request after the other, then several a prompt at once. All answers must be the same.

Cost: open-loop traffic that shares nothing, in turns with nothing to warm and with warming
always busy, on one server. The rate follows from the server's own speed, measured first.
"""


def arguments() -> argparse.ArgumentParser:
    """The parser of ``bench_cache_warming.py``."""
    parser = cli.parser(
        DESCRIPTION,
        epilog="Without options: three prompts and short traffic, two to three minutes beside "
        "the starts of three servers. Exit code 1 if answers differ; with --full also if a "
        "target is missed.",
    )
    parser.add_argument("--model", type=Path, help="model folder (default: SmolLM2, made here)")
    parser.add_argument(
        "--prompts", type=cli.positive, metavar="N", help="listed prompts (default: 3, full 6)"
    )
    parser.add_argument(
        "--prompt-words", type=cli.positive, default=800, metavar="N", help="length of each"
    )
    parser.add_argument(
        "--chunk-size",
        type=cli.positive,
        metavar="N",
        help="tokens of a warming step (default: the server's own choice)",
    )
    parser.add_argument(
        "--load",
        type=share,
        default=0.35,
        metavar="X",
        help="traffic: share of the time that one request at a time would keep the server busy",
    )
    parser.add_argument(
        "--rate", type=rate, metavar="R", help="traffic: requests a second, in place of --load"
    )
    parser.add_argument(
        "--traffic-words",
        type=cli.positive_list,
        default=[50, 250],
        metavar="MIN,MAX",
        help="traffic: words of a prompt, uniform",
    )
    parser.add_argument(
        "--requests", type=cli.positive, help="traffic: requests a turn (default: 12, full 60)"
    )
    parser.add_argument(
        "--only", choices=["first", "cost"], help="measure one of the two parts only"
    )
    parser.add_argument(
        "--tree", action="append", default=[], metavar="DIR", help="put DIR on the servers' path"
    )
    cli.add_output_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Measure, show, write; 1 if answers differ or, with ``--full``, a target is missed."""
    try:
        first_rows, cost_rows = _measure(options)
    except ServerError as error:
        raise cli.BenchError(str(error)) from error
    found = report.targets(first_rows, cost_rows)
    report.show_targets(found)
    if options.json:
        settings = {
            key: str(value) if isinstance(value, Path) else value
            for key, value in vars(options).items()
            if key not in ("json", "plot", "tree", "model")
        }
        parts = (("first", first_rows), ("cost", cost_rows), ("target", found))
        rows = [{"part": part, **row} for part, group in parts for row in group]
        result.write(options.json, result.document("cache_warming", settings, rows))
    if options.plot:
        report.plot(options.plot, first_rows, cost_rows)
    different = [row["mode"] for row in first_rows if not row["same_answers"]]
    if different:
        print(f"answers differ from cold's: {', '.join(different)}")
    missed = options.full and any(not target["met"] for target in found)
    return cli.EXIT_FAILED if different or missed else cli.EXIT_OK


def _measure(
    options: argparse.Namespace,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    count = options.prompts or (6 if options.full else 3)
    words = options.prompt_words
    listed = prompts.listed_prompts(random.Random(options.seed), count, words, "listed")
    turns = 3 if options.full else 2
    modes = ["kv"] if options.only == "cost" else list(MODES)
    steps = (0 if options.only == "cost" else len(modes)) + (
        0 if options.only == "first" else 2 * turns
    )
    answered: dict[str, first.Answered] = {}
    tokens: dict[str, int] = {}
    first_rows: list[dict[str, Any]] = []
    cost_rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Preloaded(LOGS) as preloaded,
        progress.steps(steps) as bar,
    ):
        file = prompts.write_file(Path(folder) / "prompts.json", listed)
        servers = specs(options, options.model or small_model("smollm2"), file)
        for mode in modes:
            progress.note(f"starting the server for {mode}")
            with serve(servers[mode], log_dir=LOGS, preloaded=preloaded) as (server,):
                if options.only != "cost":
                    bar.start(f"first requests: {mode}")
                    answered[mode] = first.ask(server, listed, options.seed, mode != "cold")
                    if mode == "kv":
                        tokens = measure.listed_tokens(server)
                    bar.finish()
                if mode == "kv" and options.only != "first":
                    traffic = _traffic(options, server)
                    streams = cost.compare(
                        server, traffic, turns, options.seed, words, announcer(bar)
                    )
                    bar.finish()
                    cost_rows = cost.rows(streams)
    if answered:
        first_rows = first.rows(answered, tokens)
        report.show_first(first_rows)
    if cost_rows:
        report.show_cost(cost_rows, traffic)
        for row in cost_rows:
            row["rate"], row["words"] = traffic.rate, list(traffic.words)
    return first_rows, cost_rows


def announcer(bar: progress.Steps) -> Any:
    """Announces the turns of the second part, each ending the one before."""
    begun = False

    def announce(what: str) -> None:
        nonlocal begun
        if begun:
            bar.finish()
        begun = True
        bar.start(what)

    return announce


def _traffic(options: argparse.Namespace, server: Server) -> prompts.Traffic:
    low, high = options.traffic_words[0], options.traffic_words[-1]
    count = options.requests or (60 if options.full else 12)
    measure.remove_all(server)
    traffic = prompts.Traffic(1.0, count, (low, high), 4)
    if options.rate is not None:
        return traffic.at(options.rate)
    seconds = measure.seconds_alone(server, traffic, options.seed)
    progress.note(f"a request of the traffic takes {seconds:.2f} s alone")
    return traffic.at(options.load / seconds)


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


def share(text: str) -> float:
    """A number above 0 and below 1."""
    return _between(text, 1.0, "a number between 0 and 1, e.g. 0.35")


def rate(text: str) -> float:
    """Requests a second."""
    return _between(text, float("inf"), "a number above 0")


def _between(text: str, end: float, wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < end:
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return value
