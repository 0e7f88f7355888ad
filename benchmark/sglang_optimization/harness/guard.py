# SPDX-License-Identifier: Apache-2.0
"""Runs one command and leaves nothing of it behind, whatever happens to the caller.

    python -I guard.py GRACE_SECONDS SCRATCH COMMAND [ARGUMENT ...]

The caller holds the write end of our standard input and never writes. End of file means that
it stopped us or died, however it died (an exit, an exception, SIGKILL). Then, or on SIGTERM,
the command gets SIGTERM, and after the grace period every process that descends from us gets
SIGKILL. As child subreaper (prctl(2)) we inherit what the command orphans, so a scheduler or
a daemon that it left running is found too. If we are killed ourselves the kernel kills the
command (PR_SET_PDEATHSIG). SCRATCH, a folder for the command's temporary files, is removed.

A pipe rather than a parent-death signal watches the caller, because that signal fires when the
*thread* that started us ends, which is not the end of the caller.

Exits with the command's status (128 + n for signal n). Standard library only; Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_PATIENCE_S = 60.0


def prctl(option: int, value: int) -> None:
    """Calls prctl(2).

    Raises:
        OSError: the kernel refused.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def spawn(run: Callable[[], None]) -> int:
    """Forks a process with no standard input that calls ``run``.

    The kernel kills it when we die. Returns its id, here; there it returns only by what
    ``run`` raises.
    """
    guard = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(127)
    if os.getppid() != guard:
        os._exit(1)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    run()
    os._exit(0)


def execute(command: list[str]) -> None:
    """Becomes ``command``."""
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error}", file=sys.stderr, flush=True)
        os._exit(127)


def descendants() -> list[int]:
    """Returns the process ids below us, zombies included.

    A process whose first thread has ended shows as a zombie while its other threads run, and
    its children still name it as their parent.
    """
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    parent = file.read().rpartition(b")")[2].split()[1]
            except OSError:  # gone meanwhile
                continue
            children.setdefault(int(parent), []).append(int(entry))
    found, todo = [], [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def send(pid: int, number: int) -> None:
    """Sends a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def reap(status: dict[int, int]) -> bool:
    """Collects every child that has ended into ``status`` (pid -> exit code).

    Returns whether children are left. As subreaper we inherit every orphan below us, so none
    left means that nothing descends from us.
    """
    while True:
        try:
            pid, raw = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if not pid:
            return True
        code = os.waitstatus_to_exitcode(raw)
        status[pid] = 128 - code if code < 0 else code


def kill_all(status: dict[int, int]) -> None:
    """Kills descendants until none is left: one may fork while we look."""
    deadline = time.monotonic() + KILL_PATIENCE_S
    while reap(status) and time.monotonic() < deadline:
        for pid in descendants():
            send(pid, signal.SIGKILL)
        time.sleep(0.02)


def main(grace_s: float, run: Callable[[], None]) -> int:
    """Guards a process that calls ``run``; returns its exit status."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.set_wakeup_fd(wake_write)
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, frame: stopping.append(received))
    signal.signal(signal.SIGCHLD, lambda received, frame: None)
    prctl(PR_SET_CHILD_SUBREAPER, 1)

    child = spawn(run)
    status: dict[int, int] = {}
    watched, deadline = [0, wake_read], None
    while child not in status and (deadline is None or time.monotonic() < deadline):
        readable, _, _ = select.select(watched, [], [], 0.2 if deadline else None)
        if wake_read in readable:
            os.read(wake_read, 512)
        if 0 in readable and not os.read(0, 512):
            watched.remove(0)
            stopping.append(0)
        if stopping and deadline is None:
            send(child, signal.SIGTERM)
            deadline = time.monotonic() + grace_s
        reap(status)
    kill_all(status)
    return status.get(child, 128 + signal.SIGKILL)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit("usage: guard.py GRACE_SECONDS SCRATCH COMMAND [ARGUMENT ...]")
    try:
        code = main(float(sys.argv[1]), lambda: execute(sys.argv[3:]))
    finally:
        shutil.rmtree(sys.argv[2], ignore_errors=True)
    sys.exit(code)
