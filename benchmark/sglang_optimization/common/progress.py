# SPDX-License-Identifier: Apache-2.0
"""Visible progress: a bar on a terminal, one plain line a step elsewhere."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

# Progress goes to stderr, so that a redirected stdout holds only results.
_console = Console(stderr=True, highlight=False)


class Steps:
    """Counts finished steps and says what runs now."""

    def __init__(self, total: int, bar: Progress | None, label: str):
        self._total = total
        self._done = 0
        self._bar = bar
        self._task = None if bar is None else bar.add_task(label, total=total)
        self._began = time.perf_counter()

    def start(self, what: str) -> None:
        """Announce the step that begins now."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=what)
        else:
            elapsed = time.perf_counter() - self._began
            _console.print(
                f"[{self._done + 1}/{self._total}] {elapsed:6.1f} s  {what}", markup=False
            )

    def finish(self) -> None:
        """Count the step as done."""
        self._done += 1
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task)


@contextmanager
def steps(total: int, label: str = "") -> Iterator[Steps]:
    """Show progress over ``total`` steps while the block runs."""
    if not _console.is_terminal:
        yield Steps(total, None, label)
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=_console,
        transient=True,
    ) as bar:
        yield Steps(total, bar, label)


def note(message: str) -> None:
    """One line of information on stderr."""
    _console.print(message, markup=False)
