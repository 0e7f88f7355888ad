# SPDX-License-Identifier: Apache-2.0
"""Runs scripts in copies of a process that has imported what a scheduler needs.

The imports take most of the time of a script that runs a few hundred steps of a small model.
They are done once, in a process that runs nothing else, and inherited by ``fork``.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MESSAGE_BYTES = 1 << 17
# At most so many at a time: each runs on one thread.
LANES = min(2, os.cpu_count() or 1)
IMPORTS = (
    "sglang.srt.managers.scheduler",
    "sglang.srt.models.registry",
    "sglang.srt.server_args",
    "sglang.srt.speculative.ngram_worker",
)
# Read when they are needed; any other variable may have been read by an import.
READ_LATE = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"}


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
    waiting, running = deque(scripts), deque[Copy]()
    try:
        while waiting or running:
            while waiting and len(running) < LANES:
                running.append(_start(waiting.popleft()))
            running[0].wait(timeout_s)
            running.popleft().close()
    finally:
        for copy in running:
            copy.close()


class Copy:
    """A running script.

    Args:
        pid: of its process, a child of the one with the imports.
        log: what it writes; deleted when it is closed.
    """

    def __init__(self, script: Script, pid: int, log: Path):
        self._script, self._pid, self._log = script, pid, log
        self._started = time.monotonic()
        # Nobody collects it before it is asked to, so the id is still its own.
        self._ended = os.pidfd_open(pid)
        self._status: int | None = None

    def wait(self, timeout_s: float) -> None:
        """Waits for its end; AssertionError if that is not the wanted one."""
        left = max(0.0, self._started + timeout_s - time.monotonic())
        if select.select([self._ended], [], [], left)[0]:
            status = self._collect()
            how = f"ended with status {status}"
        else:
            status, how = 1, f"did not end in {timeout_s:g} s"
        if status:
            text = self._log.read_text(errors="replace")[-4000:]
            raise AssertionError(f"{self._script.path.name} {how}:\n{text}")

    def close(self) -> None:
        """Ends it if it still runs, and deletes its log."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._ended, signal.SIGKILL)
            self._collect()
        os.close(self._ended)
        self._log.unlink(missing_ok=True)

    def _collect(self) -> int:
        self._status = _ask({"collect": self._pid})["status"]
        return self._status


def _start(script: Script) -> Copy:
    handle, log = tempfile.mkstemp(suffix=".log")
    os.close(handle)
    path = os.pathsep.join(
        filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")))
    )
    message = {
        "arguments": [str(script.path), *map(str, script.arguments)],
        "environment": {**os.environ, "PYTHONPATH": path, **script.env},
        "log": log,
    }
    return Copy(script, _ask(message)["pid"], Path(log))


@functools.cache
def _imported() -> socket.socket:
    """Starts the process with the imports; it ends when this one does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    return ours


def _ask(message: dict[str, Any]) -> dict[str, Any]:
    control = _imported()
    control.send(json.dumps(message).encode())
    answer = control.recv(MESSAGE_BYTES)
    if not answer:
        raise RuntimeError("the process with the imports has ended; its error stands above")
    return json.loads(answer)


# ---- the process with the imports


def serve(control: socket.socket) -> None:
    """Makes copies until the other end is closed; returns in none of them."""
    for name in IMPORTS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a copy must not touch every page
    while data := control.recv(MESSAGE_BYTES):
        message = json.loads(data)
        if "collect" in message:
            status = os.waitstatus_to_exitcode(os.waitpid(message["collect"], 0)[1])
            control.send(json.dumps({"status": status}).encode())
        elif pid := os.fork():
            control.send(json.dumps({"pid": pid}).encode())
        else:
            control.close()
            _run(**message)


def _run(arguments: list[str], environment: dict[str, str], log: str) -> None:
    """Runs the script and exits."""
    status = 1
    try:
        handle = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = arguments
        # As for a script: its own folder first, and what PYTHONPATH names.
        sys.path[:0] = [str(Path(arguments[0]).parent), *environment["PYTHONPATH"].split(":")]
        runpy.run_path(arguments[0], run_name="__main__")
        status = 0
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
