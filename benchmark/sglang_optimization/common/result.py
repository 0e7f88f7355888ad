# SPDX-License-Identifier: Apache-2.0
"""The JSON file of a benchmark run.

Layout (``schema`` 1)::

    {
      "schema": 1,
      "benchmark": "eviction",
      "command": "python benchmark/...",     how to repeat it
      "created": "2026-01-31T12:00:00Z",     UTC
      "machine": {...},                      see machine.machine_facts
      "settings": {...},                     every option that shaped the numbers
      "results": [{...}, ...]                one flat object a row
    }
"""

from __future__ import annotations

import json
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Mapping, Sequence

from .cli import BenchError
from .machine import command_line, machine_facts
from .table import Column, Row, markdown

SCHEMA = 1
KEYS = ("schema", "benchmark", "command", "created", "machine", "settings", "results")


def document(
    benchmark: str,
    settings: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    command: str | None = None,
) -> dict[str, Any]:
    """The result document as a dictionary of JSON types; NaN becomes null."""
    return {
        "schema": SCHEMA,
        "benchmark": benchmark,
        "command": command_line() if command is None else command,
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": machine_facts(),
        "settings": _plain(settings),
        "results": [_plain(row) for row in results],
    }


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a document, replacing the file only when all of it has been written.

    Raises:
        BenchError: the file cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "w", encoding="utf-8") as out:
            json.dump(content, out, indent=1, allow_nan=False)
            out.write("\n")
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise BenchError(f"cannot write {path.name}: {error.strerror}") from None


def append_markdown(
    path: Path, tables: Sequence[tuple[str, Sequence[Column], Sequence[Row]]]
) -> None:
    """Append titled tables to a Markdown file, below the command that made them.

    Raises:
        BenchError: the file cannot be written.
    """
    facts = machine_facts()
    lines = [
        f"`{command_line()}`",
        "",
        f"{facts['cpu']}, {facts['logical_cpus']} logical CPUs, Python {facts['python']}, "
        f"torch {facts['versions']['torch']}, source {facts['git']}",
        "",
    ]
    for title, columns, rows in tables:
        lines += [f"**{title}**", "", markdown(columns, rows)]
    try:
        with open(path, "a", encoding="utf-8") as out:
            out.write("\n".join(lines) + "\n")
    except OSError as error:
        raise BenchError(f"cannot write {path.name}: {error.strerror}") from None


def read(path: Path) -> dict[str, Any]:
    """Read a document and check its outline.

    Raises:
        BenchError: no such file, not JSON, or not a result of this schema.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchError(f"cannot read {path.name}: {error.strerror}") from None
    except ValueError as error:
        raise BenchError(f"{path.name} is not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise BenchError(f"{path.name} is not a benchmark result of schema {SCHEMA}")
    missing = [key for key in KEYS if key not in content]
    if missing:
        raise BenchError(f"{path.name} lacks {', '.join(missing)}")
    return content


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return value.name
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        return _plain(value.item())
    return value
