# SPDX-License-Identifier: Apache-2.0
"""A process that imports once, and children forked from it: both ends of the line between.

The owner makes a :class:`ForkServer` and asks it for children. The script that this runs calls
:func:`serve_forks` once its imports are done. They talk over a packet socket in JSON:

- any message, with file descriptors: a child is forked that gets them; answers ``{"pid"}``;
- ``{"collect": pid}``: answers ``{"status"}`` of a child that has ended.

Standard library only.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MESSAGE_BYTES = 1 << 17
MOST_DESCRIPTORS = 8


class ForkServerEnded(RuntimeError):
    """The process that children are forked from is gone."""


class ForkServer:
    """Runs ``python SCRIPT FD ARGUMENTS``, FD being its end of the line.

    It ends with the process that made it.

    Args:
        environment: of the process; its children get what their messages say.
        log: open file that takes what it prints; ours where there is none.
    """

    def __init__(
        self,
        script: Path,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        log: Any = None,
    ) -> None:
        self._asking = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(script), str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=None if log is None else subprocess.STDOUT,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C reaches us alone
            )

    @property
    def pid(self) -> int:
        """Process id of what children are forked from."""
        return self._process.pid

    def fork(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> Child:
        """Forks a child that gets ``message`` and duplicates of ``fds``, eight at most.

        Raises:
            ForkServerEnded: there is nothing to fork from.
        """
        return Child(self, self._ask(message, fds)["pid"])

    def collect(self, pid: int) -> int:
        """Returns the exit status of a child that has ended; negative is a signal."""
        return self._ask({"collect": pid})["status"]

    def close(self) -> None:
        """Ends it; its children live on."""
        self._control.close()
        self._process.wait()

    def _ask(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        with self._asking:
            try:
                socket.send_fds(self._control, [json.dumps(message).encode()], list(fds))
                answer = self._control.recv(MESSAGE_BYTES)
            except OSError:
                answer = b""
        if not answer:
            raise ForkServerEnded("the process to fork from has ended")
        return json.loads(answer)


class Child:
    """A forked process, used as a ``subprocess.Popen``."""

    def __init__(self, parent: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._parent = parent
        self._collecting = threading.Lock()
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
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            with self._collecting:
                if self.returncode is None:  # nor did another thread meanwhile
                    self.returncode = self._collect()
                    os.close(self._ended)
        return self.returncode

    def _collect(self) -> int:
        try:
            return self._parent.collect(self.pid)
        except ForkServerEnded:  # before it, and its status went with that
            return -1

    def kill(self) -> None:
        """Sends SIGKILL."""
        if self.returncode is None:
            signal.pidfd_send_signal(self._ended, signal.SIGKILL)


def serve_forks(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Forks what is asked for; returns in each child, with its message and descriptors.

    Raises:
        SystemExit: the other end was closed.
    """
    gc.collect()
    gc.freeze()  # a collection in a child must not touch every page
    while True:
        data, fds, _, _ = socket.recv_fds(control, MESSAGE_BYTES, MOST_DESCRIPTORS)
        if not data:
            sys.exit(0)
        message = json.loads(data)
        if "collect" in message:
            _, raw = os.waitpid(message["collect"], 0)
            answer = {"status": os.waitstatus_to_exitcode(raw)}
        else:
            pid = os.fork()
            if pid == 0:
                control.close()
                return message, fds
            for descriptor in fds:
                os.close(descriptor)
            answer = {"pid": pid}
        control.send(json.dumps(answer).encode())
