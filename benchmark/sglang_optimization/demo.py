#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serves SmolLM2 on the CPU once for each eviction policy and compares them.

Every server gets the same seeded chat traffic (agents that come back, one-time visitors, long
documents read once) with a cache far smaller than what the traffic touches. Printed are
the share of prompt tokens served from the cache, the time to the first token, and how many
tokens were evicted. Answers are compared too: a policy must not change them.

Nothing runs afterwards, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from common import cli, result, table
from common.small_models import small_model
from harness import (
    ClosedLoop,
    Conversations,
    Request,
    Result,
    Server,
    ServerError,
    ServerSpec,
    drive,
    require_success,
    serve,
    summarize,
)

ROOT = Path(__file__).resolve().parents[2]
TRAFFIC = Conversations()
console = Console(stderr=True, highlight=False)

COLUMNS = [
    table.Column("policy", "policy", text=True),
    table.Column("hit_ratio", "tokens from cache", table.percent),
    table.Column("computed_tokens", "prompt tokens computed", table.number(0)),
    table.Column("evicted_tokens", "tokens evicted", table.number(0)),
    table.Column("ttft_p50_s", "TTFT p50 (s)", table.number(2)),
    table.Column("ttft_p90_s", "TTFT p90 (s)", table.number(2)),
    table.Column("replay_s", "replay (s)", table.number(0)),
]


def arguments() -> argparse.ArgumentParser:
    """Returns the command line."""
    parser = cli.parser(__doc__ or "")
    parser.add_argument(
        "--policies",
        type=cli.comma_list,
        default=["lru", "adaptive"],
        metavar="NAMES",
        help="eviction policies, the first is what the others are compared with",
    )
    parser.add_argument(
        "--pool-tokens",
        type=cli.positive,
        default=3072,
        metavar="N",
        help="size of the KV cache in tokens",
    )
    parser.add_argument(
        "--clients", type=cli.positive, default=2, metavar="N", help="requests under way at a time"
    )
    parser.add_argument("--model", type=Path, metavar="DIR", help="a model folder (else SmolLM2)")
    parser.add_argument("--seed", type=cli.natural, default=0, metavar="N", help="of the traffic")
    parser.add_argument("--limit", type=cli.positive, metavar="N", help="replay only N requests")
    parser.add_argument(
        "--json", type=cli.output_file(".json"), metavar="FILE", help="write the results here"
    )
    return parser


def say(line: str) -> None:
    """Prints a line of progress to standard error."""
    console.print(line, markup=False, soft_wrap=True)


def model_folder(chosen: Path | None) -> Path:
    """Returns the folder to serve; makes SmolLM2 servable at first use."""
    if chosen is not None:
        if not (chosen / "config.json").is_file():
            raise cli.BenchError(f"--model {chosen}: no config.json there, so no model folder")
        return chosen
    return small_model("smollm2", report=lambda line: say(f"model: {line}"))


def replay(server: Server, requests: Sequence[Request], clients: int) -> list[Result]:
    """Sends the traffic and shows how far it is."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[hits]}"),
        console=console,
        disable=not console.is_terminal,
    )
    seen = {"done": 0, "prompt": 0, "cached": 0, "said_at": time.monotonic()}
    with bar:
        task = bar.add_task(f"{server.spec.name}: replay", total=len(requests), hits="")

        def on_result(one: Result) -> None:
            seen["done"] += 1
            seen["prompt"] += one.prompt_tokens
            seen["cached"] += one.cached_tokens
            share = seen["cached"] / max(1, seen["prompt"])
            bar.update(task, advance=1, hits=f"{share:.0%} from cache")
            if not console.is_terminal and time.monotonic() - seen["said_at"] > 10:
                seen["said_at"] = time.monotonic()
                done = f"{seen['done']}/{len(requests)}"
                say(f"{server.spec.name}: replay {done}, {share:.0%} from cache")

        results = drive(server.url, requests, ClosedLoop(clients), on_result)
    try:
        require_success(results)
    except RuntimeError as error:
        raise server.error(str(error)) from error
    return results


def run_policy(
    policy: str, model: Path, requests: Sequence[Request], options: argparse.Namespace
) -> tuple[dict[str, Any], list[Result]]:
    """Serves with ``policy``, replays the traffic and returns its row and the results."""
    spec = ServerSpec(
        model,
        flags={
            "radix_eviction_policy": policy,
            "max_total_tokens": options.pool_tokens,
            "dtype": "float32",  # bfloat16 is many times slower on CPUs without such units
            "enable_metrics": True,
            "enable_cache_report": True,
            "sleep_on_idle": True,
        },
        name=policy,
        ready_timeout_s=600,
    )
    with serve(spec, log_dir=ROOT / "build" / "logs", report=say) as (server,):
        # The first passes allocate and compile; they are not what is compared.
        for words in (8, 200, 200):
            server.generate("warm " * words, max_new_tokens=4)
        server.flush_cache()
        begin = time.monotonic()
        with server.measured() as changes:
            results = replay(server, requests, options.clients)
        seconds = time.monotonic() - begin
    summary = summarize(results)
    row = {
        "policy": policy,
        **asdict(summary),
        "computed_tokens": summary.prompt_tokens - summary.cached_tokens,
        "evicted_tokens": changes[0].get("sglang:evicted_tokens_total"),
        "replay_s": seconds,
    }
    return row, results


def compare(rows: Sequence[dict[str, Any]], answers: Sequence[list[str]]) -> str:
    """Returns the closing sentences: each policy against the first."""
    first = rows[0]
    lines = []
    for row, texts in zip(rows[1:], answers[1:], strict=True):
        fewer = 1 - row["computed_tokens"] / first["computed_tokens"]
        faster = 1 - row["ttft_mean_s"] / first["ttft_mean_s"]
        same = sum(a == b for a, b in zip(texts, answers[0], strict=True))
        lines.append(
            f"{row['policy']} against {first['policy']}: {fewer:+.1%} prompt tokens saved, "
            f"mean TTFT {faster:+.1%} shorter, {same} of {len(texts)} answers identical."
        )
    return "\n".join(lines)


def run(options: argparse.Namespace) -> int:
    """Runs the demo; returns the exit code."""
    requests = TRAFFIC.requests(options.seed)[: options.limit]
    model = model_folder(options.model)
    rows: list[dict[str, Any]] = []
    answers: list[list[str]] = []
    try:
        for policy in options.policies:
            row, results = run_policy(policy, model, requests, options)
            rows.append(row)
            answers.append([one.text for one in results])
    except ServerError as error:
        print(f"demo: {error}", file=sys.stderr)
        return cli.EXIT_FAILED
    table.show(
        f"{len(requests)} chat requests, {rows[0]['prompt_tokens']:,} prompt tokens, "
        f"a cache of {options.pool_tokens:,} tokens",
        COLUMNS,
        rows,
        compare(rows, answers) or None,
    )
    if options.json:
        settings = {
            "seed": options.seed,
            "pool_tokens": options.pool_tokens,
            "clients": options.clients,
            "traffic": asdict(TRAFFIC),
            "model": model.name,
        }
        result.write(options.json, result.document("demo", settings, rows))
    return cli.EXIT_OK


if __name__ == "__main__":
    raise SystemExit(cli.main(run, arguments()))
