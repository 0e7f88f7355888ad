# SPDX-License-Identifier: Apache-2.0
"""Starts servers from a process that has imported sglang already.

A start imports some 4,000 modules in each of three processes, which is most of the time that
a server with a small model takes to become ready. Here they are imported once and inherited
by ``fork``. From there on a start is the usual one: same arguments, same processes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO

from .fork_server import Child, ForkServer, ForkServerEnded
from .launch import Launch
from .spec import ServerError, ServerSpec

ZYGOTE = Path(__file__).with_name("zygote.py")
MODULE = "sglang.launch_server"
# Variables that upstream and Mooncake read when they need them, not when they are imported.
READ_LATE = {
    "MC_TCP_BIND_ADDRESS",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS",
    "SGLANG_CPU_OMP_THREADS_BIND",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE",
    "SGLANG_HOST_IP",
    "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND",
}


class Preloaded:
    """A process with sglang imported, of which each started server is a copy.

    It ends with the process that made it. Close it after its servers.
    """

    def __init__(self, log_dir: Path) -> None:
        log_dir.mkdir(parents=True, exist_ok=True)
        self.log_path = log_dir / "preloaded.log"
        environment = {**os.environ}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with self.log_path.open("wb") as log:
            self._forks = ForkServer(ZYGOTE, [MODULE], environment, log)

    @property
    def pid(self) -> int:
        """Process id of the process with the imports."""
        return self._forks.pid

    @staticmethod
    def can_start(spec: ServerSpec) -> bool:
        """Whether ``spec`` means what is imported here.

        Variables of its own that may be read during import rule that out.
        """
        return (
            spec.module == MODULE
            and spec.python == sys.executable
            and not (spec.command or spec.pythonpath or set(spec.env) - READ_LATE)
        )

    def start(self, launch: Launch) -> ForkedGuard:
        """Starts a guard and below it the server that ``launch.command`` names.

        Raises:
            ServerError: the process with the imports has ended; its log says why.
        """
        command = list(launch.command)
        message = {
            "arguments": command[command.index(MODULE) + 1 :],
            "environment": dict(launch.environment),
            "grace_s": launch.grace_s,
            "scratch": launch.scratch,
        }
        read, write = os.pipe()
        try:
            child = self._forks.fork(message, [read, launch.log.fileno()])
        except ForkServerEnded as error:
            os.close(write)
            log = self.log_path.read_text(errors="replace")[-4000:]
            raise ServerError(
                f"the preloaded process has ended; {self.log_path}:\n{log}"
            ) from error
        finally:
            os.close(read)
        return ForkedGuard(child, os.fdopen(write, "wb"))

    def __enter__(self) -> Preloaded:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process; its servers must have been stopped."""
        self._forks.close()


class ForkedGuard:
    """A guard that is another process's child; see ``launch.GuardProcess``."""

    def __init__(self, child: Child, stdin: IO[bytes]) -> None:
        self.pid = child.pid
        self.stdin: IO[bytes] | None = stdin
        self.poll, self.wait, self.kill = child.poll, child.wait, child.kill
        self._child = child

    @property
    def returncode(self) -> int | None:
        """Exit status, once ``poll`` or ``wait`` saw the end."""
        return self._child.returncode
