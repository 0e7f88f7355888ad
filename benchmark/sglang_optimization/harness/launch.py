# SPDX-License-Identifier: Apache-2.0
"""How a server's processes come into being: a guard, and the command below it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

GUARD = Path(__file__).with_name("guard.py")


@dataclass(frozen=True)
class Launch:
    """One start.

    Attributes:
        command: program and arguments.
        environment: all of its variables.
        log: open file that takes what it prints.
        grace_s: see ``ServerSpec.grace_s``.
        scratch: folder for its temporary files; the guard removes it.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    log: IO[bytes]
    grace_s: float
    scratch: str


class GuardProcess(Protocol):
    """The part of ``subprocess.Popen`` that a server needs of its guard.

    Closing ``stdin`` stops the server; so does the end of the process that holds it.
    """

    pid: int
    stdin: IO[bytes] | None

    @property
    def returncode(self) -> int | None:
        """Exit status, once ``poll`` or ``wait`` saw the end."""

    def poll(self) -> int | None:
        """Returns the exit status once it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end; ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""

    def kill(self) -> Any:
        """Sends SIGKILL."""


def start_guard(launch: Launch) -> GuardProcess:
    """Starts a guard in a new interpreter, and the command in another."""
    return subprocess.Popen(
        [sys.executable, "-I", str(GUARD), str(launch.grace_s), launch.scratch, *launch.command],
        stdin=subprocess.PIPE,
        stdout=launch.log,
        stderr=subprocess.STDOUT,
        env=launch.environment,
        start_new_session=True,  # Ctrl-C reaches us alone; we stop the server in order
    )
