# SPDX-License-Identifier: Apache-2.0
"""``--engine``: tokens a second of a real server, plain and with drafts.

One server an arm, one after the other, the same prompts in the same order, greedy. Answers are
compared: an arm whose output differs from plain decoding fails the run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import cli, progress, result, table
from harness import ClosedLoop, Request, Server, ServerSpec, drive, require_success, serve

ROOT = Path(__file__).resolve().parents[3]
BASE = {"dtype": "float32", "enable_metrics": True, "random_seed": 1, "sleep_on_idle": True}
NGRAM = {"speculative_algorithm": "NGRAM"}
SAM = {**NGRAM, "speculative_ngram_use_sam": True}
ARMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "upstream NGRAM": NGRAM,
    "SAM fast": {**SAM, "speculative_ngram_sam_mode": "fast"},
    "SAM full": SAM,
}
TEXT = (
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n"
    "    return total / len(values)\n\n"
)
# Workload -> what the user asks; a copying one, a repetitive one and one with nothing to copy.
PROMPTS = {
    "copy": ["Repeat this code exactly:\n" + TEXT * 2, "Copy this code word for word:\n" + TEXT],
    "list": [
        "Write the numbers from one to thirty, each on its own line as 'number: N'.",
        "List the days of the week, then list them again, five times.",
    ],
    "prose": ["Tell me a short story about a lighthouse.", "Why is the sky blue?"],
}
COLUMNS = (
    table.Column("workload", "workload", text=True),
    table.Column("arm", "arm", text=True),
    table.Column("concurrency", "at a time"),
    table.Column("tokens_per_s", "tokens/s", table.number(1)),
    table.Column("versus_plain", "against plain", table.ratio),
    table.Column("accept_length", "accept length", table.number(2)),
    table.Column("equal", "output equal"),
)


def run(options: argparse.Namespace) -> int:
    """Measures every arm; exit code 1 if an output differs from plain decoding."""
    new_tokens, repeats = (160, 3) if options.full else (64, 1)
    spec = ServerSpec(_model(), flags=BASE, ready_timeout_s=600)
    rows: list[dict[str, Any]] = []
    plain: dict[tuple[str, int], tuple[list, float]] = {}
    with progress.steps(len(ARMS)) as bar:
        for arm, flags in ARMS.items():
            bar.start(arm)
            one = replace(spec.with_flags(**flags), name=arm.replace(" ", "-").lower())
            with serve(one, log_dir=ROOT / "build" / "logs", report=progress.note) as (server,):
                server.generate("warm up " * 20, max_new_tokens=8)
                for workload, prompts in PROMPTS.items():
                    for concurrency in (1, 4) if options.full else (1,):
                        row, outputs = _measure(server, prompts * repeats, new_tokens, concurrency)
                        key = (workload, concurrency)
                        reference, rate = plain.setdefault(key, (outputs, row["tokens_per_s"]))
                        row |= {
                            "workload": workload,
                            "arm": arm,
                            "versus_plain": row["tokens_per_s"] / rate,
                            "equal": "yes" if outputs == reference else "NO",
                        }
                        rows.append(row)
            bar.finish()
    rows.sort(key=lambda row: (list(PROMPTS).index(row["workload"]), row["concurrency"]))
    table.show("Served with SmolLM2-135M-Instruct, greedy, float32", COLUMNS, rows)
    if options.json:
        settings = {"new_tokens": new_tokens, "repeats": repeats, "flags": BASE}
        result.write(options.json, result.document("spec_decode_engine", settings, rows))
    return cli.EXIT_OK if all(row["equal"] == "yes" for row in rows) else cli.EXIT_FAILED


def _model() -> Path:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from models import folder, smollm2
    except ImportError as error:
        raise cli.BenchError(f"--engine needs the environment of `make venv` ({error})") from None
    try:
        return smollm2.ensure("float32", report=progress.note)
    except folder.ModelFolderError as error:
        raise cli.BenchError(str(error)) from error


def _measure(
    server: Server, prompts: Sequence[str], new_tokens: int, concurrency: int
) -> tuple[dict[str, Any], list]:
    """Tokens a second and tokens a decoding step over the prompts, and their outputs."""
    requests = [Request(({"role": "user", "content": text},), new_tokens) for text in prompts]
    server.flush_cache()
    before = server.metrics()
    began = time.perf_counter()
    results = drive(server.url, requests, ClosedLoop(concurrency))
    spent = time.perf_counter() - began
    require_success(results)
    after = server.metrics()
    tokens = after.total("sglang:generation_tokens_total") - before.total(
        "sglang:generation_tokens_total"
    )
    steps = after.total("sglang:spec_verify_calls_total") - before.total(
        "sglang:spec_verify_calls_total"
    )
    return {
        "concurrency": concurrency,
        "tokens_per_s": tokens / spent,
        "accept_length": (tokens - len(requests)) / steps if steps else None,
    }, [r.text for r in results]
