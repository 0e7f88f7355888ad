# SPDX-License-Identifier: Apache-2.0
"""What publishing costs a prefill scheduler: turns of one process, readers in another."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import stats
from common.cli import BenchError
from harness import free_port
from harness.disaggregation import LOOPBACK_ENV, missing_transfer_engine

from .pair import PAGE_SIZE
from .publishing import SEND_UPDATES, StoppedReader
from .transport import reading

ARMS = ("silent", "publishing")
CORES = ("python", "rust")
STOPPED = "decode, and one stopped"
READERS = ("decode", STOPPED)
MODEL_NAME = "model"
# Full before the clock runs.
CAPACITY = 4096
SCRIPT = Path(__file__).with_name("scheduler_turns.py")


def measure(
    model: Path, *, core: str, rounds: int, prompts: int, seed: int, readers: str
) -> dict[str, Any]:
    """Prefill throughput with publishing by that without it.

    Args:
        core: tree core, one of ``CORES``.
        rounds: turns of each; both get the same prompts.
        prompts: of a turn.
        readers: one of ``READERS``; the stopped one is connected, reads nothing, and has
            its buffers full before the first turn.

    Raises:
        BenchError: the scheduler failed, a turn did not compute what the other did, or
            the stopped reader was never full.
    """
    why_not = missing_transfer_engine()
    if why_not is not None:
        raise BenchError(f"no prefill instance runs here: {why_not}; see requirements/dev.txt")
    flags = {
        "dtype": "float32",
        "page-size": PAGE_SIZE,
        "served-model-name": MODEL_NAME,
        "chunked-prefill-size": 1024,
        "max-total-tokens": CAPACITY,
        "random-seed": 1,
        "disaggregation-mode": "prefill",
        "disaggregation-transfer-backend": "mooncake_tcp",
        "disaggregation-bootstrap-port": free_port(),
        "cross-instance-cache-config": json.dumps({"send_updates": SEND_UPDATES}),
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context((folder / "log").open("wb"))
        command = [sys.executable, str(SCRIPT), str(model), str(folder / "rows")]
        command += map(str, (rounds, prompts, seed, int(readers == STOPPED)))
        process = subprocess.Popen(
            [*command, *words, "--enable-cross-instance-cache-sync"],
            env={
                **os.environ,
                **LOOPBACK_ENV,
                "OMP_NUM_THREADS": "1",
                "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": core,
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        # A reader that asks for a port before it is bound can be given that very port.
        endpoint = folder / "rows.endpoint"
        while not endpoint.exists() and process.poll() is None:
            time.sleep(0.02)
        reader = None
        if endpoint.exists():
            updates, syncs = json.loads(endpoint.read_text())
            ports = [int(address.rpartition(":")[2]) for address in (updates, syncs)]
            stream = stack.enter_context(reading(ports, model=MODEL_NAME, page_size=PAGE_SIZE))
            if readers == STOPPED:
                reader = StoppedReader(updates)
                stack.callback(reader.close)
        if process.wait() != 0:
            text = (folder / "log").read_text(errors="replace")[-3000:]
            raise BenchError(f"the prefill scheduler ended with {process.returncode}:\n{text}")
        result = json.loads((folder / "rows").read_text())
        rows = result["turns"]
        row: dict[str, Any] = {
            "core": core,
            "reader": readers,
            "rounds": rounds,
            "published": sum(each["updates"] for each in rows),
            "read": stream.counts["updates"],
        }
        if reader is not None:
            # The publisher is gone and tells no more: what is left is what it was given.
            behind, since_first = reader.missed()
            row["missed"] = result["updates"] - (since_first - behind)
            if row["missed"] < row["published"]:
                raise BenchError("the stopped reader's buffers never filled")
    return row | _compared(rows, prompts)


def _compared(rows: list[dict[str, Any]], prompts: int) -> dict[str, Any]:
    """Ratios of publishing to silent, turn by turn, mean rates, and what a prompt costs more.

    Raises:
        BenchError: they computed different amounts, or the wrong side published.
    """
    sides = {arm: [row for row in rows if row["arm"] == arm] for arm in ARMS}
    for silent, publishing in zip(sides["silent"], sides["publishing"], strict=True):
        if silent["computed"] != publishing["computed"]:
            raise BenchError("the two sides of a turn computed different numbers of tokens")
        if silent["updates"] or not publishing["updates"]:
            raise BenchError("a silent turn published, or a publishing one did not")
    found: dict[str, Any] = {}
    for key, field in (("rate", "seconds"), ("cpu", "cpu_s"), ("thread", "scheduler_cpu_s")):
        values = {
            arm: [row["computed"] / row[field] for row in side] for arm, side in sides.items()
        }
        if key == "rate":
            for arm in ARMS:
                found[f"{arm}_tokens_per_s"] = stats.mean(values[arm])
            pair = values["publishing"], values["silent"]
        else:  # time a token: the inverse of a rate
            pair = values["silent"], values["publishing"]
        middle, low, high = stats.ratio_interval(*pair)
        found |= {f"{key}_ratio": middle, f"{key}_low": low, f"{key}_high": high}
    added = [
        1e6 * (publishing["seconds"] - silent["seconds"]) / prompts
        for silent, publishing in zip(sides["silent"], sides["publishing"], strict=True)
    ]
    low, high = stats.median_interval(added, seed=0)
    return found | {"added_us": stats.median(added), "added_low": low, "added_high": high}
