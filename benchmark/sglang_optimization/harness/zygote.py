# SPDX-License-Identifier: Apache-2.0
"""Imports a server's modules once and forks a guarded server for each start asked for.

    python zygote.py CONTROL_FD MODULE

``preloaded.py`` holds the other end of CONTROL_FD (see ``fork_server.py``) and sends
``{"arguments", "environment", "grace_s", "scratch"}`` with two descriptors, the guard's
standard input and the log: a guard is forked, which forks the server.

Ends when the other end is closed. What a server's own processes would import again under
multiprocessing's ``spawn`` they inherit too: they are forked from a copy of this process made
before the server ran anything. Standard library only, but for what MODULE imports.
"""

from __future__ import annotations

import importlib
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.spawn
import multiprocessing.util
import os
import runpy
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import guard
from fork_server import serve_forks

# What launching imports late: the HTTP server, and in the scheduler every model's module.
LATE = ["sglang.srt.entrypoints.http_server", "sglang.srt.models.registry"]


class BecomeServer(BaseException):
    """Unwinds the stack of the process that is to be the server."""


def become_guard(message: dict, stdin: int, log: int) -> list[str]:
    """Guards a server until it ends, then exits; returns its arguments in the server."""
    os.setsid()
    for descriptor, number in ((stdin, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, number)
    os.close(stdin)
    os.close(log)
    os.environ.clear()
    os.environ.update(message["environment"])
    tempfile.tempdir = None  # TMPDIR is another one

    def unwind() -> None:
        raise BecomeServer

    try:
        status = guard.main(message["grace_s"], unwind)
    except BecomeServer:
        return message["arguments"]
    shutil.rmtree(message["scratch"], ignore_errors=True)
    os._exit(status)


def forked_interpreter(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
    """Stands in for ``multiprocessing.util.spawnv_passfds``: runs ``-c CODE`` in a copy of us."""
    server = os.getpid()
    child = os.fork()
    if child:
        return child
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in passfds:
            try:
                os.close(int(name))
            except OSError:  # the one that listed the folder
                continue
    # Upstream's processes report a failure to their parent, which is now us.
    signal.signal(signal.SIGQUIT, lambda number, frame: os.kill(server, number))
    be_everyones_fork_server(passfds[0])
    exec(args[list(args).index("-c") + 1], {"__name__": "__main__"})
    sys.exit(0)


def be_everyones_fork_server(listener: int) -> None:
    """Makes processes started from here, and theirs, be forked from here too.

    A data-parallel controller starts the schedulers. It would start a fork server of its own,
    and wait for ever for the lock that is held while this copy is made.
    """
    with socket.socket(fileno=os.dup(listener)) as line:
        address = line.getsockname()
    ours = multiprocessing.forkserver._forkserver
    setattr(ours, "_forkserver_address", address)  # noqa: B010, unknown to typeshed
    setattr(ours, "ensure_running", lambda: None)  # noqa: B010, a method to mypy


def inherit_environment() -> None:
    """Gives a process the variables that its parent has when it starts it, as ``spawn`` does."""
    describe, prepare = multiprocessing.spawn.get_preparation_data, multiprocessing.spawn.prepare

    def get_preparation_data(name: str) -> dict[str, Any]:
        return {**describe(name), "environment": dict(os.environ)}

    def prepare_with_environment(data: Mapping[str, Any]) -> None:
        os.environ.clear()
        os.environ.update(data["environment"])
        prepare({key: value for key, value in data.items() if key != "environment"})

    multiprocessing.spawn.get_preparation_data = get_preparation_data
    multiprocessing.spawn.prepare = prepare_with_environment


def inherit_imports() -> None:
    """Makes the server's ``spawn`` give processes that are copies of what we are now."""
    inherit_environment()
    multiprocessing.resource_tracker.ensure_running()
    original = multiprocessing.util.spawnv_passfds
    multiprocessing.util.spawnv_passfds = forked_interpreter
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        multiprocessing.util.spawnv_passfds = original
    choose = multiprocessing.set_start_method

    def set_start_method(method: str | None, force: bool = False) -> None:
        choose("forkserver" if method == "spawn" else method, force)

    multiprocessing.set_start_method = set_start_method


def main(control_fd: int, module: str) -> None:
    """Imports, serves requests, and in a server's process runs ``module``."""
    sys.path[0] = os.getcwd()  # as ``python -m`` does; our folder's names are not the server's
    control = socket.socket(fileno=control_fd)
    for name in (module, *LATE):
        importlib.import_module(name)
    if "setproctitle" in sys.modules:  # it finds the title's place by what a start leaves there
        sys.modules["setproctitle"].getproctitle()
    message, fds = serve_forks(control)
    arguments = become_guard(message, *fds)
    inherit_imports()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
