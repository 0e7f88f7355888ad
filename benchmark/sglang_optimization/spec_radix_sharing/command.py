# SPDX-License-Identifier: Apache-2.0
"""Command line of the benchmark.

Branching: roots generate, and while they do, others continue what they have written so far
(N-best, agents). What counts is how many tokens of a branch the server computes although it
has computed them, and its time to first token.

Retraction: requests are retracted every few passes (upstream's own test switch) or by a pool
that cannot hold them, and resume. What counts is what is computed again.

Cost: CPU time of an insertion and of looking whether one is due, without a server.

An arm is a server with a flag set; the arms differ in early sharing alone. All answers must
be the same in both. Targets: 0.3x and 0.2x of the tokens recomputed without.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import cli, progress, result, stats, table
from common.small_models import small_model
from harness import (
    ClosedLoop,
    Preloaded,
    Request,
    Server,
    ServerError,
    ServerSpec,
    drive,
    require_success,
    serve,
    workload,
)

from . import cost
from .agents import Branching, Outcome, branch_off

LOGS = Path(__file__).resolve().parents[3] / "build" / "logs"
TARGETS = {"branching": 0.3, "retraction": 0.2}
PARTS = ("branching", "retraction", "pressure", "cost")
COST_LENGTHS = (2048, 8192, 32768)
ON = "--enable-spec-radix-sharing"

BRANCH_COLUMNS = [
    table.Column("arm", "arm", text=True),
    table.Column("branches", "branches", table.number(0)),
    table.Column("known", "known tokens", table.number(0)),
    table.Column("recomputed", "recomputed", table.number(0)),
    table.Column("recomputed_of_off", "against off", table.ratio),
    table.Column("ttft_p50_s", "TTFT p50 (s)", table.number(3)),
    table.Column("ttft_of_off", "against off", table.ratio),
    table.Column("root_s", "whole run (s)", table.number(1)),
    table.Column("on_arrival", "at arrivals", table.number(0)),
    table.Column("insertions", "insertions", table.number(0)),
    table.Column("accept_length", "accept length", table.number(2)),
    table.Column("drains", "drains", table.number(0)),
    table.Column("same", "answers as off", text=True),
]
RETRACT_COLUMNS = [
    table.Column("arm", "arm", text=True),
    table.Column("retracted", "retractions", table.number(0)),
    table.Column("recomputed", "recomputed", table.number(0)),
    table.Column("a_retraction", "a retraction", table.number(1)),
    table.Column("recomputed_of_off", "against off", table.ratio),
    table.Column("whole_s", "whole run (s)", table.number(1)),
    table.Column("kept", "kept", table.number(0)),
    table.Column("saved", "saved", table.number(0)),
    table.Column("same", "answers as off", text=True),
]


def arguments() -> argparse.ArgumentParser:
    """Returns the command line."""
    parser = cli.parser(__doc__ or "")
    parser.add_argument(
        "--model", type=Path, help="model folder (default: the tiny model; --full: SmolLM2)"
    )
    parser.add_argument(
        "--only", choices=PARTS, help="one part only (default: the first two; --full: all)"
    )
    parser.add_argument(
        "--algorithm",
        choices=["none", "ngram", "sam"],
        default="ngram",
        help="speculation of all arms; sam is ngram with suffix-automaton drafts",
    )
    parser.add_argument(
        "--interval", type=cli.positive, default=256, metavar="N", help="tokens between insertions"
    )
    parser.add_argument("--roots", type=cli.positive, default=3, metavar="N", help="at a time")
    parser.add_argument(
        "--prompt-tokens", type=cli.positive, default=128, metavar="N", help="of a root"
    )
    parser.add_argument(
        "--output", type=cli.positive, default=384, metavar="N", help="tokens a root generates"
    )
    parser.add_argument(
        "--branch-every", type=cli.positive, default=96, metavar="N", help="tokens, on average"
    )
    parser.add_argument(
        "--retract-every", type=cli.positive, default=40, metavar="N", help="forward passes"
    )
    parser.add_argument(
        "--tree", action="append", default=[], metavar="DIR", help="put DIR on the servers' path"
    )
    cli.add_output_options(parser)
    return parser


def _model(options: argparse.Namespace) -> Path:
    return options.model or small_model("smollm2" if options.full else "tiny")


def _spec(options: argparse.Namespace, model: Path, part: str, on: bool) -> ServerSpec:
    flags: dict[str, Any] = {
        "dtype": "float32",
        "enable_metrics": True,
        "random_seed": 1,
        "sleep_on_idle": True,
        "max_total_tokens": 16384,
        "max_running_requests": 16,
    }
    if options.algorithm != "none":
        flags["speculative_algorithm"] = "NGRAM"
        flags["speculative_num_draft_tokens"] = 6
    if options.algorithm == "sam":
        flags["speculative_ngram_use_sam"] = True
    if on:
        flags["enable_spec_radix_sharing"] = True
        flags["spec_radix_sharing_interval"] = options.interval
    env: dict[str, str | None] = {}
    if part == "retraction":
        env = {
            "SGLANG_TEST_RETRACT": "1",
            "SGLANG_TEST_RETRACT_INTERVAL": str(options.retract_every),
        }
    if part == "pressure":
        # Holds three quarters of what the roots need at their end.
        need = options.roots * (options.prompt_tokens + options.output)
        flags["max_total_tokens"] = max(1024, need * 3 // 4)
        flags["schedule_conservativeness"] = 0.01
    name = f"{part}-{'on' if on else 'off'}"
    return ServerSpec(model, flags, name=name, env=env, pythonpath=options.tree)


def _prompts(options: argparse.Namespace, model: Path, part: str) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    rng = random.Random(f"{options.seed}-{part}")
    count, length = options.roots, options.prompt_tokens
    texts = [workload.text(rng, length * 2) for _ in range(count)]
    return [tokenizer(text)["input_ids"][:length] for text in texts]


def _branching(options: argparse.Namespace, server: Server, prompts: list[list[int]]):
    work = Branching(prompts, options.output, options.branch_every)
    return branch_off(server.url, work, options.seed)


def _branch_row(arm: str, outcome: Outcome, off: dict[str, Any] | None) -> dict[str, Any]:
    found = outcome.branches
    recomputed = sum(branch.recomputed for branch in found)
    ttft = stats.median([b.result.ttft_s for b in found if b.result.ttft_s is not None])
    return {
        "arm": arm,
        "branches": len(found),
        "known": sum(branch.known for branch in found),
        "recomputed": recomputed,
        "recomputed_of_off": _over(recomputed, off and off["recomputed"]),
        "ttft_p50_s": ttft,
        "ttft_of_off": _over(ttft, off and off["ttft_p50_s"]),
    }


def _over(value: float, base: float | None) -> float | None:
    return value / base if base else None


def _retracting(server: Server, options: argparse.Namespace, prompts: list[list[int]]):
    requests = [Request(p, options.output, sampling={"ignore_eos": True}) for p in prompts]
    results = drive(server.url, requests, ClosedLoop(len(requests)))
    require_success(results)
    return results


def measure(
    options: argparse.Namespace, model: Path, part: str, bar, preloaded: Preloaded
) -> list[dict[str, Any]]:
    """Rows of one part: without and with early sharing."""
    prompts = _prompts(options, model, part)
    rows: list[dict[str, Any]] = []
    answers: list[list[int]] = []
    for on in (False, True):
        arm = "on" if on else "off"
        bar.start(f"{part}: sharing {arm}")
        spec = _spec(options, model, part, on)
        with serve(spec, log_dir=LOGS, preloaded=preloaded) as (server,):
            server.generate("warm up the process " * 20, 24)
            server.flush_cache()
            off = rows[0] if rows else None
            with server.measured() as change:
                began = _clock()
                if part == "branching":
                    outcome = _branching(options, server, prompts)
                    given = outcome.answers()
                    row = _branch_row(arm, outcome, off)
                    row["root_s"] = _clock() - began
                else:
                    results = _retracting(server, options, prompts)
                    given = [r.output_ids for r in results]
                    row = {"arm": arm, "whole_s": _clock() - began}
            row = {"part": part, **row, **_counted(change[0], part, prompts, off)}
        answers = answers or given
        row["same"] = "yes" if given == answers else "no"
        rows.append(row)
        bar.finish()
    return rows


def _clock() -> float:
    import time

    return time.monotonic()


def _counted(change, part: str, prompts: list[list[int]], off) -> dict[str, Any]:
    """What the server's counters say of one run."""
    name = "sglang:spec_radix_sharing_{}_total".format
    calls = change.get("sglang:spec_verify_calls_total")
    made = change.get("sglang:generation_tokens_total")
    found: dict[str, Any] = {
        "accept_length": made / calls if calls else None,
        "drains": change.get(name("drains")),
        "insertions": change.get(name("insertions")),
        "on_arrival": change.get(name("arrival_insertions")),
        "shared": change.get(name("shared_tokens")),
        "served": change.get(name("served_tokens")),
        "kept": change.get(name("kept_tokens")),
        "saved": change.get(name("saved_tokens")),
    }
    if part != "branching":
        computed = change.total("sglang:realtime_tokens_total", mode="prefill_compute")
        recomputed = computed - sum(map(len, prompts))
        retracted = change.get("sglang:num_retracted_requests_total")
        found |= {
            "retracted": retracted,
            "recomputed": recomputed,
            "a_retraction": recomputed / retracted if retracted else None,
            "recomputed_of_off": _over(recomputed, off and off["recomputed"]),
        }
    return found


def run(options: argparse.Namespace) -> int:
    """Measure, show, and say whether answers agree and targets are met."""
    if options.branch_every >= options.output:
        raise cli.BenchError(
            f"--branch-every {options.branch_every} must be below --output {options.output}"
        )
    if options.plot and options.only == "cost":
        raise cli.BenchError("--plot shows tokens recomputed; --only cost has none")
    parts = [options.only] if options.only else list(PARTS if options.full else PARTS[:2])
    served = [part for part in parts if part != "cost"]
    rows: list[dict[str, Any]] = []
    try:
        with progress.steps(2 * len(served) + int("cost" in parts)) as bar:
            if served:
                model = _model(options)
                with Preloaded(LOGS) as preloaded:
                    for part in served:
                        rows += measure(options, model, part, bar, preloaded)
            if "cost" in parts:
                bar.start("cost")
                rows += _cost(options)
                bar.finish()
    except ServerError as error:
        raise cli.BenchError(str(error)) from error
    except RuntimeError as error:
        raise cli.BenchError(str(error)) from error
    for part in parts:
        _show(options, part, [row for row in rows if row["part"] == part])
    if options.json:
        settings = {
            key: str(value) if isinstance(value, Path) else value
            for key, value in vars(options).items()
            if key not in ("json", "plot", "tree", "model")
        }
        result.write(options.json, result.document("spec_radix_sharing", settings, rows))
    if options.plot:
        _plot(options.plot, rows)
    return _verdict(rows)


def _cost(options: argparse.Namespace) -> list[dict[str, Any]]:
    sys.path[:0] = options.tree
    return [
        cost.measure(core, length, options.interval, repeats=5)
        for core in ("rust", "python")
        for length in COST_LENGTHS
    ]


def _show(options: argparse.Namespace, part: str, rows: Sequence[dict[str, Any]]) -> None:
    if part == "cost":
        table.show("CPU time of one thread", cost.COLUMNS, rows)
        return
    what = f"{options.roots} roots of {options.prompt_tokens} + {options.output} tokens"
    if part == "branching":
        title = f"Branching: {what}, two branches about each {options.branch_every} tokens"
        table.show(title, BRANCH_COLUMNS, rows)
        return
    cause = (
        f"every {options.retract_every} passes" if part == "retraction" else "by a pool too small"
    )
    table.show(f"Retraction {cause}: {what}", RETRACT_COLUMNS, rows)


def _verdict(rows: Sequence[dict[str, Any]]) -> int:
    failed = [f"{row['part']}: answers differ" for row in rows if row.get("same") == "no"]
    for row in rows:
        target, ratio = TARGETS.get(row["part"]), row.get("recomputed_of_off")
        if target is not None and ratio is not None and ratio > target:
            failed.append(f"{row['part']}: recomputed {ratio:.2f}x, the target is {target}x")
    for line in failed:
        print(line)
    return cli.EXIT_FAILED if failed else cli.EXIT_OK


def _plot(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    from common import plot

    parts = list(dict.fromkeys(row["part"] for row in rows if row["part"] != "cost"))
    with plot.figure(path, 1, len(parts)) as (_, axes):
        for axis, part in zip(axes[0], parts, strict=True):
            mine = [row for row in rows if row["part"] == part]
            axis.bar([f"sharing {row['arm']}" for row in mine], [r["recomputed"] for r in mine])
            axis.set(title=part, ylabel="tokens recomputed")
