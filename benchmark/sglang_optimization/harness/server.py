# SPDX-License-Identifier: Apache-2.0
"""One server process: started under a guard, watched until ready, asked, stopped."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import requests

from .metrics import Metrics

GUARD = Path(__file__).with_name("guard.py")
RUN_MARK = "SGLANG_HARNESS_RUN"
PORT_BASE = "SGLANG_HARNESS_PORT_BASE"
Report = Callable[[str], None]
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

    The first free one from ``$SGLANG_HARNESS_PORT_BASE`` upwards where that is set, so that
    several people can share a machine, else one the kernel picks.
    """
    base = os.environ.get(PORT_BASE)
    candidates = range(int(base), int(base) + 100) if base else [0]
    for port in candidates:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return probe.getsockname()[1]
    raise ServerError(f"no free port from {PORT_BASE}={base} to {candidates[-1]}")


def marked_processes(mark: str) -> list[psutil.Process]:
    """Returns the live processes whose environment carries a server's mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = process.environ().get(RUN_MARK) == mark
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


class Server:
    """A running (or stopped) server. Use as a context manager, or call :func:`serve`.

    Whatever ends this process ends the server: leaving the ``with`` block, an exception,
    Ctrl-C, SIGTERM or SIGKILL (see ``guard.py``).
    """

    def __init__(self, spec: ServerSpec, log_dir: str | Path | None = None) -> None:
        self.spec = spec
        self.port = spec.port or free_port(spec.host)
        self.url = f"http://{spec.host}:{self.port}"
        self.mark = uuid.uuid4().hex
        folder = Path(log_dir) if log_dir else Path(tempfile.gettempdir()) / "sglang-harness"
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path = folder / f"{spec.name}-{self.port}-{self.mark[:6]}.log"
        self.ready_s: float | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._scratch = ""
        self._seen: set[psutil.Process] = set()
        self._http = requests.Session()
        self._http.trust_env = False  # a proxy setting must not divert loopback traffic

    # Life

    def start(self) -> Server:
        """Starts the process and returns at once; see :meth:`wait_ready`."""
        command = self.spec.command_line(self.port)
        # Upstream leaves socket and metric files in the temporary folder; the guard removes
        # this one. Compiled kernels stay where torch keeps them.
        self._scratch = tempfile.mkdtemp(prefix="sglang-")
        environment = {
            "TORCHINDUCTOR_CACHE_DIR": f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}",
            **self.spec.environment(),
            RUN_MARK: self.mark,
            "TMPDIR": self._scratch,
        }
        with self.log_path.open("wb") as log:
            log.write(f"$ {shlex.join(command)}\n".encode())
            log.flush()
            self._started_at = time.monotonic()
            self._guard = subprocess.Popen(
                [sys.executable, "-I", str(GUARD), str(self.spec.grace_s), self._scratch, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches us alone; we stop the server in order
            )
        with contextlib.suppress(psutil.NoSuchProcess):
            self._seen.add(psutil.Process(self._guard.pid))
        return self

    def wait_ready(self, report: Report = lambda line: None) -> Server:
        """Waits until the server takes requests; stops it when that fails.

        ``report`` receives a line every five seconds: elapsed time and the log's last line.

        Raises:
            ServerError: the process ended, or ``ready_timeout_s`` went by.
        """
        deadline = self._started_at + self.spec.ready_timeout_s
        next_report = time.monotonic() + 5.0
        try:
            while not self._answers():
                now = time.monotonic()
                if not self.alive:
                    code = self._guard.returncode if self._guard else None
                    raise self.error(f"ended with exit status {code} before it was ready")
                if now > deadline:
                    raise self.error(f"not ready after {self.spec.ready_timeout_s:g} s")
                if now >= next_report:
                    last = (self.log_tail(1) or [""])[0].strip()[:100]
                    report(f"{self.spec.name}: starting, {now - self._started_at:.0f} s: {last}")
                    next_report = now + 5.0
                time.sleep(0.2)
        except BaseException:
            self.stop()
            raise
        self.ready_s = time.monotonic() - self._started_at
        self.processes()  # remembered, should the guard be killed
        report(f"{self.spec.name}: ready after {self.ready_s:.0f} s on {self.url}")
        return self

    def _answers(self) -> bool:
        try:
            return self._http.get(self.url + self.spec.ready_path, timeout=5).status_code == 200
        except requests.RequestException:
            return False

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._guard is not None and self._guard.poll() is None

    @property
    def guard_pid(self) -> int | None:
        """Process id of the guard, which is the parent of all of the server's processes."""
        return self._guard.pid if self._guard else None

    def processes(self) -> list[psutil.Process]:
        """Returns every live process of this server.

        They descend from the guard. A process that the guard's death orphaned is known by a
        mark in its environment, unless it overwrote that, as upstream's schedulers do with
        their title; those are remembered from the time before.
        """
        for process in list(self._seen):  # the guard among them
            with contextlib.suppress(psutil.NoSuchProcess):
                self._seen |= set(process.children(recursive=True))
        self._seen |= set(marked_processes(self.mark))
        # psutil compares creation times, so a reused process id is not taken for ours.
        self._seen = {process for process in self._seen if _lives(process)}
        return sorted(self._seen, key=lambda process: process.pid)

    def stop(self) -> None:
        """Ends the server and everything it started; safe to call again."""
        guard = self._guard
        if guard is None:
            return
        if guard.stdin:
            guard.stdin.close()
        try:
            guard.wait(self.spec.grace_s + 90.0)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()
        finally:
            # Nothing is left unless the guard itself was killed.
            for process in self.processes():
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._http.close()

    def __enter__(self) -> Server:
        if self._guard is None:
            self.start()
        if self.ready_s is None:
            self.wait_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # Log

    def log_tail(self, lines: int = 40) -> list[str]:
        """Returns the last non-empty lines of the log."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, self.log_path.stat().st_size - 64 * 1024))
                text = log.read().decode(errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-lines:]

    def error(self, what: str) -> ServerError:
        """Returns an exception that says ``what`` and shows the end of the log."""
        tail = "\n".join("    " + line[:300] for line in self.log_tail())
        return ServerError(f"{self.spec.name}: {what}; end of {self.log_path}:\n{tail}")

    # Questions

    def request(self, method: str, path: str, timeout: float = 60.0, **kwargs: Any) -> Any:
        """Sends one HTTP request and returns the ``requests`` response.

        Raises:
            ServerError: no answer, or a status of 400 and above.
        """
        try:
            response = self._http.request(method, self.url + path, timeout=timeout, **kwargs)
        except requests.RequestException as error:
            state = "no answer" if self.alive else "the process has ended"
            raise self.error(f"{method} {path}: {state} ({error})") from error
        if response.status_code >= 400:
            raise ServerError(
                f"{self.spec.name}: {method} {path} gave {response.status_code}: "
                f"{response.text[:2000]}"
            )
        return response

    def get(self, path: str, **kwargs: Any) -> Any:
        """Returns the JSON that GET ``path`` answers."""
        return self.request("GET", path, **kwargs).json()

    def post(self, path: str, body: Any = None, **kwargs: Any) -> Any:
        """Returns the JSON that POST ``path`` with the JSON ``body`` answers."""
        return self.request("POST", path, json=body, **kwargs).json()

    def generate(
        self, prompt: str | Sequence[int], max_new_tokens: int = 16, **sampling: Any
    ) -> dict[str, Any]:
        """Generates greedily through ``/generate`` and returns its answer.

        ``prompt`` is text or token ids; ``sampling`` adds to or replaces sampling parameters.
        """
        kind = "text" if isinstance(prompt, str) else "input_ids"
        parameters = {"temperature": 0, "max_new_tokens": max_new_tokens, **sampling}
        value = prompt if isinstance(prompt, str) else list(prompt)
        return self.post("/generate", {kind: value, "sampling_params": parameters}, timeout=300)

    def server_info(self) -> dict[str, Any]:
        """Returns ``/server_info``: the resolved flags and the scheduler's internal state."""
        return self.get("/server_info")

    def metrics(self) -> Metrics:
        """Scrapes ``/metrics`` (the server needs ``enable_metrics``)."""
        return Metrics.parse(self.request("GET", "/metrics").text)

    def flush_cache(self) -> None:
        """Empties the prefix cache; the server must be idle."""
        self.request("POST", "/flush_cache")

    @contextlib.contextmanager
    def measured(self) -> Iterator[list[Metrics]]:
        """Scrapes before and after a block; the yielded list then holds the difference."""
        before = self.metrics()
        result: list[Metrics] = []
        yield result
        result.append(self.metrics() - before)


@contextlib.contextmanager
def serve(
    *specs: ServerSpec,
    log_dir: str | Path | None = None,
    report: Report = lambda line: None,
) -> Iterator[list[Server]]:
    """Starts all ``specs`` at once, yields them when all are ready, stops all at the end.

    Raises:
        ServerError: one failed; the others are stopped first.
    """
    servers: list[Server] = []
    with contextlib.ExitStack() as stack:
        for spec in specs:
            server = Server(spec, log_dir)
            stack.callback(server.stop)
            servers.append(server.start())
        for server in servers:
            server.wait_ready(report)
        yield servers
