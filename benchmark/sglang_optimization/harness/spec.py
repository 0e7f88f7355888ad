# SPDX-License-Identifier: Apache-2.0
"""What to start: a model, flags, an environment; and the command that they make."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

PORT_BASE = "SGLANG_HARNESS_PORT_BASE"
_given: set[int] = set()
FlagValue = str | int | float | bool | None | Sequence[Any] | Mapping[str, Any]


class ServerError(RuntimeError):
    """A server did not start, or ended, or answered wrongly; the message ends with its log."""


def flag_arguments(flags: Mapping[str, FlagValue]) -> list[str]:
    """Spells ``flags`` as command-line arguments.

    ``True`` gives the bare flag, ``False`` and ``None`` leave it out, a list gives several
    arguments, a mapping gives JSON. Names may use underscores.
    """
    arguments: list[str] = []
    for name, value in flags.items():
        flag = "--" + name.lstrip("-").replace("_", "-")
        if value is None or value is False:
            continue
        arguments.append(flag)
        if isinstance(value, Mapping):
            arguments.append(json.dumps(value))
        elif isinstance(value, Sequence) and not isinstance(value, str):
            arguments += [str(item) for item in value]
        elif value is not True:
            arguments.append(str(value))
    return arguments


@dataclass(frozen=True)
class ServerSpec:
    """What to start.

    Attributes:
        model: folder of the model; ``None`` for a process that serves none (a router).
        flags: see :func:`flag_arguments`.
        name: appears in progress lines and in the log's file name.
        module: run as ``python -m MODULE``.
        python: interpreter that has the server installed.
        pythonpath: folders put before the inherited ``PYTHONPATH``, such as a tree made by
            ``python -m fork develop``.
        env: variables added to the inherited environment; ``None`` removes one.
        command: replaces the whole command; ``{port}`` and ``{host}`` are filled in.
        port: fixed port; a free one is chosen when ``None``.
        ready_path: answers 200 once the server takes requests.
        ready_timeout_s: time allowed for that.
        grace_s: time between SIGTERM and SIGKILL when stopping.
    """

    model: str | Path | None = None
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    name: str = "server"
    module: str = "sglang.launch_server"
    python: str = sys.executable
    pythonpath: Sequence[str | Path] = ()
    env: Mapping[str, str | None] = field(default_factory=dict)
    command: Sequence[str] | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    ready_path: str = "/health"
    ready_timeout_s: float = 300.0
    grace_s: float = 10.0

    def with_flags(self, **flags: FlagValue) -> ServerSpec:
        """Returns a copy with ``flags`` added or replaced."""
        return replace(self, flags={**self.flags, **flags})

    def command_line(self, port: int) -> list[str]:
        """Returns the command that serves on ``port``."""
        if self.command is not None:
            values = {"host": self.host, "port": str(port)}
            return [part.format_map(values) for part in self.command]
        own: dict[str, FlagValue] = {"host": self.host, "port": port}
        if self.model is not None:
            own = {"model_path": str(self.model), **own}
        return [self.python, "-m", self.module, *flag_arguments({**own, **self.flags})]

    def environment(self) -> dict[str, str]:
        """Returns the variables of the server's process.

        Bytecode is written even where the caller switched that off: compiling the sources at
        every start takes three processes far longer than loading the model does.
        """
        changes = {"PYTHONDONTWRITEBYTECODE": None, **self.env}
        merged = {name: value for name, value in os.environ.items() if name not in changes}
        merged |= {name: value for name, value in changes.items() if value is not None}
        before = [str(Path(folder).absolute()) for folder in self.pythonpath]
        if before:
            merged["PYTHONPATH"] = os.pathsep.join([*before, merged.get("PYTHONPATH", "")]).strip(
                os.pathsep
            )
        return merged


def free_port(host: str = "127.0.0.1") -> int:
    """Returns a TCP port that is free now.

    One of the 100 from ``$SGLANG_HARNESS_PORT_BASE`` upwards where that is set, so that
    several people can share a machine, else one the kernel picks. From a base every process
    begins somewhere else and gives no port twice before all were given: the first taker may
    not have bound it yet.
    """
    base = os.environ.get(PORT_BASE)
    if not base:
        port = _bound(host, 0)
        assert port is not None, "the kernel gave no port"
        return port
    ports = [int(base) + (os.getpid() * 7 + i) % 100 for i in range(100)]
    for fresh in (True, False):
        for port in ports:
            if (port not in _given) is fresh and _bound(host, port) is not None:
                _given.add(port)
                return port
    raise ServerError(f"no free port from {PORT_BASE}={base} to {int(base) + 99}")


def _bound(host: str, port: int) -> int | None:
    """The port that a socket could be bound to, or None."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return int(probe.getsockname()[1])
    return None
