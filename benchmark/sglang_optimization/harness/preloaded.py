# SPDX-License-Identifier: Apache-2.0
"""Starts servers from a process that has imported sglang already.

A start imports some 4,000 modules in each of three processes, which is most of the time that
a server with a small model takes to become ready. Here they are imported once and inherited
by ``fork``. From there on a start is the usual one: same arguments, same processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from .launch import Launch
from .spec import ServerError, ServerSpec

ZYGOTE = Path(__file__).with_name("zygote.py")
MODULE = "sglang.launch_server"
MESSAGE_BYTES = 1 << 17
# Variables that upstream and Mooncake read when they need them, not when they are imported.
READ_LATE = {
    "MC_TCP_BIND_ADDRESS",
    "SGLANG_CPU_OMP_THREADS_BIND",
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
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with theirs, self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(ZYGOTE), str(theirs.fileno()), MODULE],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @staticmethod
    def can_start(spec: ServerSpec) -> bool:
        """Whether ``spec`` means what is imported here.

        Variables of its own that may be read during import rule that out, and several
        data-parallel ranks: their controller's processes hang when started this way.
        """
        return (
            spec.module == MODULE
            and spec.python == sys.executable
            and not (spec.command or spec.pythonpath or set(spec.env) - READ_LATE)
            and spec.flags.get("dp_size", 1) == 1
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
            answer = self.ask(message, [read, launch.log.fileno()])
        except BaseException:
            os.close(write)
            raise
        finally:
            os.close(read)
        return ForkedGuard(self, answer["pid"], os.fdopen(write, "wb"))

    def ask(self, message: dict[str, Any], fds: list[int] | None = None) -> dict[str, Any]:
        """Sends one message, with file descriptors, and returns the answer."""
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], fds or [])
            answer = self._control.recv(MESSAGE_BYTES)
        except OSError:
            answer = b""
        if not answer:
            log = self.log_path.read_text(errors="replace")[-4000:]
            raise ServerError(f"the preloaded process has ended; {self.log_path}:\n{log}")
        return json.loads(answer)

    def __enter__(self) -> Preloaded:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process; its servers must have been stopped."""
        self._control.close()
        self._process.wait()


class ForkedGuard:
    """A guard that is another process's child; see ``launch.GuardProcess``."""

    def __init__(self, parent: Preloaded, pid: int, stdin: IO[bytes]) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.returncode: int | None = None
        self._parent = parent
        # Its parent does not collect it before it is asked to, so the id is still its own.
        self._ended = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Returns the exit status once it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end; ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("guard", timeout or 0.0)
            try:
                self.returncode = self._parent.ask({"collect": self.pid})["status"]
            except ServerError:  # its parent died before it, and its status with that
                self.returncode = -1
            os.close(self._ended)
        return self.returncode

    def kill(self) -> None:
        """Sends SIGKILL."""
        if self.returncode is None:
            signal.pidfd_send_signal(self._ended, signal.SIGKILL)
