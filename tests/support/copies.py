# SPDX-License-Identifier: Apache-2.0
"""Runs scripts in copies of a process that has imported what a scheduler needs.

The imports take most of the time of a script that runs a few hundred steps of a small model.
They are done once, in a process that runs nothing else (``copied.py``), and inherited by
``fork``.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from harness.fork_server import Child, ForkServer
from harness.preloaded import READ_LATE

HERE = Path(__file__).parent
# What pytest.ini puts on the path.
IMPORTED_FROM = [HERE.parents[1] / "benchmark" / "sglang_optimization", HERE.parent]
# At most so many at a time: each runs on one thread, and pytest's workers share the cores.
LANES = 1 if "PYTEST_XDIST_WORKER" in os.environ else min(2, os.cpu_count() or 1)


@dataclass(frozen=True)
class Script:
    """One run of a script, as ``python PATH ARGUMENTS``.

    Attributes:
        env: environment variables beside this process's own, of ``READ_LATE`` only.
    """

    path: Path
    arguments: Iterable[Any]
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if early := set(self.env) - READ_LATE:
            raise ValueError(f"imports may have read {', '.join(early)}; run it by subprocess")


def run_script(script: Script, timeout_s: float = 600.0) -> None:
    """Runs ``script`` to its end; see ``run_scripts``."""
    run_scripts([script], timeout_s)


def run_scripts(scripts: Iterable[Script], timeout_s: float = 600.0) -> None:
    """Runs all, as many side by side as there are cores, two at most.

    Raises:
        AssertionError: one ended with an error or not in time; the text ends with what it
            wrote last. The others are ended.
    """
    waiting, running = deque(scripts), deque[Run]()
    try:
        while waiting or running:
            while waiting and len(running) < LANES:
                running.append(Run(waiting.popleft()))
            running[0].wait(timeout_s)
            running.popleft().close()
    finally:
        for run in running:
            run.close()


class Run:
    """A running script."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, closed by close
        message = {
            "arguments": [str(script.path), *map(str, script.arguments)],
            "environment": {**_environment(), **script.env},
        }
        self._started = time.monotonic()
        self._process: Child = _imported().fork(message, [self._log.fileno()])

    def wait(self, timeout_s: float) -> None:
        """Waits for its end; AssertionError if that is not the wanted one."""
        left = max(0.0, self._started + timeout_s - time.monotonic())
        try:
            status = self._process.wait(left)
            how = f"ended with status {status}"
        except subprocess.TimeoutExpired:
            status, how = 1, f"did not end in {timeout_s:g} s"
        if status:
            self._log.seek(0)
            text = self._log.read().decode(errors="replace")[-4000:]
            raise AssertionError(f"{self._script.path.name} {how}:\n{text}")

    def close(self) -> None:
        """Ends it if it still runs."""
        self._process.kill()
        self._process.wait()
        self._log.close()


def _environment() -> dict[str, str]:
    path = [*map(str, IMPORTED_FROM), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


@functools.cache
def _imported() -> ForkServer:
    return ForkServer(HERE / "copied.py", environment=_environment())
