# SPDX-License-Identifier: Apache-2.0
"""Servers that share their imports are servers like others: they answer, fail and end alike."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from harness import Preloaded, Server, ServerError, ServerSpec
from support.fakes import eventually
from support.servers import BASE_FLAGS

ROOT = Path(__file__).resolve().parents[2]
SPEC = ServerSpec("model", {"max_total_tokens": 64})

OWNER = """
import json, sys, time
from pathlib import Path
from harness import Preloaded, Server, ServerSpec
from support.servers import BASE_FLAGS
logs = Path({log_dir!r})
preloaded = Preloaded(logs)
with Server(ServerSpec({model!r}, BASE_FLAGS), logs, preloaded.start) as server:
    pids = [process.pid for process in server.processes()]
    print(json.dumps([*pids, preloaded.pid]), flush=True)
    time.sleep(60)
"""


def test_what_has_an_interpreter_of_its_own_is_not_taken():
    assert Preloaded.can_start(SPEC)
    assert Preloaded.can_start(replace(SPEC, env={"SGLANG_HOST_IP": "127.0.0.1"}))
    for change in (
        {"env": {"OMP_NUM_THREADS": "1"}},
        {"command": ["true"]},
        {"python": "python3"},
        {"pythonpath": ["elsewhere"]},
        {"module": "sglang_router.launch_router"},
    ):
        assert not Preloaded.can_start(replace(SPEC, **change)), change


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory):
    made = Preloaded(tmp_path_factory.mktemp("preloaded"))
    yield made
    made.close()


@pytest.mark.e2e
def test_two_servers_have_processes_of_their_own_and_leave_nothing(preloaded, tiny_model, tmp_path):
    spec = ServerSpec(str(tiny_model), BASE_FLAGS)
    with (
        Server(spec, tmp_path, preloaded.start) as one,
        Server(spec.with_flags(page_size=16), tmp_path, preloaded.start) as other,
    ):
        assert one.generate("ab", 8)["output_ids"] == other.generate("ab", 8)["output_ids"]
        assert (one.server_info()["page_size"], other.server_info()["page_size"]) == (1, 16)
        # The scheduler's metrics arrive by a folder that the server names in its environment.
        assert one.metrics().total("sglang:max_total_num_tokens") == 4096
        groups = [{process.pid for process in server.processes()} for server in (one, other)]
        # Guard, server, scheduler and detokenizer at least.
        assert all(len(group) >= 4 for group in groups) and not groups[0] & groups[1]
    assert not any(psutil.pid_exists(pid) for pid in groups[0] | groups[1])


@pytest.mark.e2e
def test_a_refused_start_is_reported_with_its_log(preloaded, tiny_model, tmp_path):
    spec = ServerSpec(str(tiny_model), {**BASE_FLAGS, "radix_eviction_policy": "none-such"})
    with pytest.raises(ServerError, match=r"(?s)exit status 2.*none-such"):
        Server(spec, tmp_path, preloaded.start).start().wait_ready()


@pytest.mark.e2e
def test_a_killed_scheduler_ends_its_server(preloaded, tiny_model, tmp_path):
    spec = ServerSpec(str(tiny_model), BASE_FLAGS)
    with Server(spec, tmp_path, preloaded.start) as server:
        (scheduler,) = (p for p in server.processes() if "scheduler" in " ".join(p.cmdline()))
        scheduler.kill()
        assert eventually(lambda: not server.alive, 60)


@pytest.mark.e2e
def test_when_the_owner_is_killed_nothing_is_left(tiny_model, tmp_path):
    code = textwrap.dedent(OWNER.format(log_dir=str(tmp_path), model=str(tiny_model)))
    paths = [str(ROOT / "benchmark/sglang_optimization"), str(ROOT / "tests")]
    paths += os.environ.get("PYTHONPATH", "").split(os.pathsep)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    ) as owner:
        pids = [int(pid) for pid in owner.stdout.readline().strip("[]\n").split(",")]
        owner.send_signal(signal.SIGKILL)
    assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids), 30)


@pytest.mark.e2e
def test_when_the_preloaded_process_is_gone_its_log_is_shown(tiny_model, tmp_path):
    preloaded = Preloaded(tmp_path)
    os.kill(preloaded.pid, signal.SIGKILL)
    with pytest.raises(ServerError, match="preloaded process has ended"):
        Server(ServerSpec(str(tiny_model), BASE_FLAGS), tmp_path, preloaded.start).start()
    preloaded.close()
