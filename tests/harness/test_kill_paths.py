# SPDX-License-Identifier: Apache-2.0
"""Nothing that a server started may outlive what started the server, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from harness import Server
from harness.server import marked_processes as marked
from support.fakes import eventually, fake

ROOT = Path(__file__).resolve().parents[2]
# Each leaves one live process (see ``start_children`` of the fake server).
STUBBORN = ["plain", "deaf", "session", "daemon", "headless"]

OWNER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
from support.fakes import fake
from harness import serve
with serve(fake(deaf=True, children={children}), log_dir={log_dir!r}) as (server,):
    print(server.mark, flush=True)
    {body}
"""


def owner(tmp_path: Path, body: str) -> tuple[subprocess.Popen, str]:
    """Starts a process that owns a server with stubborn children; returns it and the mark."""
    code = OWNER.format(children=STUBBORN, log_dir=str(tmp_path), body=textwrap.dedent(body))
    paths = [str(ROOT / "benchmark/sglang_optimization"), str(ROOT / "tests")]
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    mark = process.stdout.readline().strip()
    assert mark, process.stderr.read()
    # The guard, the server, and a sleeper for each kind.
    assert eventually(lambda: len(marked(mark)) == 2 + len(STUBBORN)), marked(mark)
    return process, mark


def finish(process: subprocess.Popen) -> int:
    """Waits for the owner and closes its pipes."""
    with process:
        return process.wait(timeout=30)


@pytest.mark.parametrize(
    ("signal_number", "status"),
    [(signal.SIGINT, 1), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)],
    ids=["ctrl-c", "sigterm", "sigkill"],
)
def test_signals_to_the_owner_leave_nothing(tmp_path, signal_number, status):
    process, mark = owner(tmp_path, "time.sleep(600)")
    process.send_signal(signal_number)
    code = finish(process)
    assert code == status or (signal_number == signal.SIGINT and code == -signal.SIGINT)
    assert eventually(lambda: marked(mark) == [])


@pytest.mark.parametrize("body", ["pass", "raise RuntimeError", "import os; os._exit(5)"])
def test_every_way_to_leave_the_block_leaves_nothing(tmp_path, body):
    process, mark = owner(tmp_path, f"sys.stdin.readline() if 0 else time.sleep(1); {body}")
    finish(process)
    assert eventually(lambda: marked(mark) == [])


def test_ctrl_c_reaches_the_owner_before_the_server(tmp_path):
    """The terminal signals a process group; the server is not in ours."""
    with Server(fake(), tmp_path) as server:
        assert os.getpgid(server.guard_pid) != os.getpgid(0)


def test_a_server_that_ignores_sigterm_is_killed_after_the_grace_period(tmp_path):
    server = Server(fake(deaf=True, children=STUBBORN, grace_s=0.3), tmp_path)
    with server:
        assert eventually(lambda: len(server.processes()) == 2 + len(STUBBORN))
    assert server.processes() == []


def test_killing_the_guard_takes_the_server_with_it(tmp_path):
    """The kernel kills the server with its guard; stop() sweeps up what is left."""
    server = Server(fake(children=STUBBORN), tmp_path)
    with server:
        info = server.server_info()
        os.kill(server.guard_pid, signal.SIGKILL)
        assert eventually(lambda: not psutil.pid_exists(info["pid"]))
    assert server.processes() == []


def test_children_that_outlive_a_crashed_server_are_ended(tmp_path):
    server = Server(fake(children=STUBBORN), tmp_path)
    with server:
        os.kill(server.server_info()["pid"], signal.SIGKILL)
        assert eventually(lambda: server.processes() == [])
        assert not server.alive


def test_a_server_that_was_not_started_has_no_processes(tmp_path):
    server = Server(fake(), tmp_path)
    server.stop()
    assert server.processes() == [] and not server.alive


def test_stopping_twice_is_allowed(tmp_path):
    server = Server(fake(), tmp_path)
    with server:
        pass
    server.stop()
    assert server.processes() == []
