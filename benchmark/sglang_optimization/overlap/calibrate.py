# SPDX-License-Identifier: Apache-2.0
"""Host costs of a step, read from a server that measures them.

A server with ``--enable-dynamic-overlap`` exports the averages it decides by. Lines
through them over the batch sizes it has seen are the model's host costs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.cli import BenchError
from harness import Metrics
from overlap.costs import Line, StepCosts, fit

# Written by in_process.py.
RECORDED = Path(__file__).with_name("calibration.json")
CPU = "sglang:dynamic_overlap_cpu_seconds"


def from_metrics(metrics: Metrics) -> dict[str, Any]:
    """Host lines of decode steps: {"schedule": {...}, "launch": ..., "process": ..., "sizes"}.

    Raises:
        BenchError: the server has decoded at fewer than two batch sizes.
    """
    samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for labels, value in metrics.matching(CPU, phase="decode"):
        # A bucket holds sizes from s to 2 s - 1; its middle stands for it.
        size = int(labels["size"])
        samples[labels["part"]].append((size * 1.5 if size > 1 else 1, value))
    if len(samples["process"]) < 2:
        raise BenchError(
            "calibration needs decode steps of two batch sizes at least; "
            "use --concurrency with a larger value"
        )
    found: dict[str, Any] = {part: asdict(fit(points)) for part, points in samples.items()}
    found["sizes"] = sorted(size for size, _ in samples["process"])
    return found


def costs(calibration: dict[str, Any], launch_s: float) -> StepCosts:
    """Step costs of the model; the forward pass is set by each cell.

    Args:
        calibration: measured lines. Their launch is not used: on a CPU it holds the
            forward pass.
        launch_s: host time of a launch that does not.
    """
    lines = {part: Line(**calibration[part]) for part in ("schedule", "process")}
    return StepCosts(**lines, launch=Line(launch_s, 0.0), forward=Line(0.0, 0.0))


def load(path: Path = RECORDED) -> dict[str, Any]:
    """A recorded calibration, or the one in a result file of this benchmark.

    Raises:
        BenchError: the file holds neither.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchError(f"{path.name} is not a calibration: {error}") from None
    for key in ("settings", "calibration"):
        content = content.get(key, content) if isinstance(content, dict) else {}
    parts = {"schedule", "launch", "process"}
    if not isinstance(content, dict) or not all(
        set(content.get(part, ())) == {"fixed", "per_row"} for part in parts
    ):
        raise BenchError(f"{path.name} holds no calibration; make one with --part engine --json")
    return content
