# SPDX-License-Identifier: Apache-2.0
"""One server process: started under a guard, watched until ready, asked, stopped."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import requests

from .launch import GuardProcess, Launch, start_guard
from .metrics import Metrics
from .preloaded import Preloaded
from .spec import ServerError, ServerSpec, free_port

RUN_MARK = "SGLANG_HARNESS_RUN"
PORT_TAKEN = re.compile(r"EADDRINUSE|(address|port) (is )?already in use", re.IGNORECASE)
Report = Callable[[str], None]


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

    def __init__(
        self,
        spec: ServerSpec,
        log_dir: str | Path | None = None,
        start_guard: Callable[[Launch], GuardProcess] = start_guard,
    ) -> None:
        self.spec = spec
        self._start_guard = start_guard
        self.mark = uuid.uuid4().hex
        self._log_dir = Path(log_dir) if log_dir else Path(tempfile.gettempdir()) / "sglang-harness"
        self._log_dir.mkdir(parents=True, exist_ok=True)
        self._choose_port()
        self._may_choose_again = spec.port is None
        self.ready_s: float | None = None
        self._guard: GuardProcess | None = None
        self._started_at = 0.0
        self._scratch = ""
        self._seen: set[psutil.Process] = set()
        self._http = requests.Session()
        self._http.trust_env = False  # a proxy setting must not divert loopback traffic

    def _choose_port(self) -> None:
        self.port = self.spec.port or free_port(self.spec.host)
        self.url = f"http://{self.spec.host}:{self.port}"
        self.log_path = self._log_dir / f"{self.spec.name}-{self.port}-{self.mark[:6]}.log"

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
            self._guard = self._start_guard(
                Launch(command, environment, log, self.spec.grace_s, self._scratch)
            )
        with contextlib.suppress(psutil.NoSuchProcess):
            self._seen.add(psutil.Process(self._guard.pid))
        return self

    def wait_ready(self, report: Report = lambda line: None) -> Server:
        """Waits until the server takes requests; stops it when that fails.

        Ports, ours and those that the server picks for itself, are found free before they are
        bound. A start that another program's bind spoilt is tried once more, with other ports,
        unless ``spec.port`` is set.

        ``report`` receives a line every five seconds: elapsed time and the log's last line.

        Raises:
            ServerError: the process ended, or ``ready_timeout_s`` went by.
        """
        next_report = time.monotonic() + 5.0
        try:
            while not self._answers():
                now = time.monotonic()
                deadline = self._started_at + self.spec.ready_timeout_s
                if not self.alive and self._may_choose_again and self._lost_a_port():
                    report(f"{self.spec.name}: a port was taken meanwhile, starting again")
                    self._may_choose_again = False
                    self.stop()
                    self._choose_port()
                    self.start()
                    continue
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

    def _lost_a_port(self) -> bool:
        return any(PORT_TAKEN.search(line) for line in self.log_tail(200))

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
    preloaded: Preloaded | None = None,
) -> Iterator[list[Server]]:
    """Starts all ``specs`` at once, yields them when all are ready, stops all at the end.

    Args:
        preloaded: starts those that it can; the others, or all, get interpreters of their own.

    Raises:
        ServerError: one failed; the others are stopped first.
    """
    servers: list[Server] = []
    with contextlib.ExitStack() as stack:
        for spec in specs:
            warm = preloaded is not None and preloaded.can_start(spec)
            server = Server(spec, log_dir, *([preloaded.start] if preloaded and warm else []))
            stack.callback(server.stop)
            servers.append(server.start())
        for server in servers:
            server.wait_ready(report)
        yield servers
