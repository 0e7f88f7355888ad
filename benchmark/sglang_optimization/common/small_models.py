# SPDX-License-Identifier: Apache-2.0
"""The two models that server benchmarks use unless told otherwise (``tools/models``)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from . import cli, progress

ROOT = Path(__file__).resolve().parents[3]


def small_model(name: str, report: Callable[[str], None] = progress.note) -> Path:
    """Returns the folder of ``smollm2`` (135M, real) or ``tiny`` (two random layers), in float32.

    Made on first use, under ``build/models``.

    Raises:
        BenchError: it cannot be made here; the message says why.
    """
    tools = str(ROOT / "tools")
    if tools not in sys.path:
        sys.path.insert(0, tools)
    try:
        from models import folder, smollm2, tiny
    except ImportError as error:
        raise cli.BenchError(f"the environment of `make venv` is needed ({error})") from None
    try:
        return tiny.ensure() if name == "tiny" else smollm2.ensure("float32", report=report)
    except folder.ModelFolderError as error:
        raise cli.BenchError(str(error)) from error
