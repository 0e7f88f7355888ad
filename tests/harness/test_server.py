# SPDX-License-Identifier: Apache-2.0
"""Start-up, failure and questions, on a fake server."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace

import pytest

from harness import Server, ServerError, ServerSpec, flag_arguments, free_port, serve
from support.fakes import fake


def test_flags_are_spelled_as_the_command_line_wants_them():
    flags = {
        "model_path": "m",
        "enable-metrics": True,
        "off": False,
        "unset": None,
        "sizes": [1, 2],
        "config": {"mode": "learned"},
        "zero": 0,
    }
    assert flag_arguments(flags) == [
        *("--model-path", "m"),
        "--enable-metrics",
        *("--sizes", "1", "2"),
        *("--config", '{"mode": "learned"}'),
        *("--zero", "0"),
    ]


def test_command_and_environment_reach_the_process(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "inherited")
    monkeypatch.setenv("DROPPED", "1")
    spec = ServerSpec(
        "some/model",
        {"enable_metrics": True},
        python="py",
        pythonpath=[tmp_path],
        env={"ADDED": "2", "DROPPED": None},
    )
    command = spec.command_line(7)
    assert command[:3] == ["py", "-m", "sglang.launch_server"]
    assert command[3:] == flag_arguments(
        {"model-path": "some/model", "host": "127.0.0.1", "port": 7, "enable-metrics": True}
    )
    environment = spec.environment()
    assert environment["PYTHONPATH"] == f"{tmp_path}:inherited"
    assert environment["ADDED"] == "2" and "DROPPED" not in environment


def test_readiness_waits_for_the_health_page(tmp_path):
    lines = []
    with serve(fake(ready_after=0.5), log_dir=tmp_path, report=lines.append) as (server,):
        assert server.ready_s >= 0.5
        assert server.server_info()["pid"] in {process.pid for process in server.processes()}
    assert any("ready after" in line for line in lines)
    assert not server.alive and server.processes() == []


def test_a_server_that_dies_early_is_reported_with_its_log(tmp_path):
    with pytest.raises(ServerError, match=r"(?s)exit status 3.*out of imaginary memory"):
        Server(fake(fail_after=0.2), tmp_path).start().wait_ready()


def test_a_start_that_lost_its_port_is_tried_again_with_another(tmp_path):
    lines = []
    server = Server(fake(lose_port=str(tmp_path / "lost")), tmp_path)
    first = server.port
    with server.start().wait_ready(lines.append):
        assert server.port != first
        assert str(server.port) in server.get("/server_info")["argv"]
    assert any("port was taken" in line for line in lines)


def test_a_given_port_that_is_taken_is_an_error(tmp_path):
    spec = replace(fake(lose_port=str(tmp_path / "lost")), port=free_port())
    with pytest.raises(ServerError, match="already in use"):
        Server(spec, tmp_path).start().wait_ready()


def test_a_server_that_never_gets_ready_is_stopped_at_the_timeout(tmp_path):
    server = Server(fake(ready_after=60, ready_timeout_s=1), tmp_path).start()
    with pytest.raises(ServerError, match=r"(?s)not ready after 1 s.*fake server: loading"):
        server.wait_ready()
    assert server.processes() == []


def test_a_command_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(ServerError, match=r"cannot run no-such-program"):
        Server(ServerSpec(command=["no-such-program"]), tmp_path).start().wait_ready()


def test_when_one_of_several_fails_the_others_are_stopped(tmp_path, monkeypatch):
    started = []
    original = Server.start
    monkeypatch.setattr(Server, "start", lambda self: started.append(self) or original(self))
    with pytest.raises(ServerError), serve(fake(), fake(fail_after=0.3), log_dir=tmp_path):
        pytest.fail("the block must not run")
    assert len(started) == 2
    assert [server.processes() for server in started] == [[], []]


def test_an_error_in_the_block_stops_the_servers(tmp_path):
    seen = []

    def fail(servers):
        seen.extend(servers)
        assert all(server.alive for server in servers)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), serve(fake(), fake(), log_dir=tmp_path) as servers:
        fail(servers)
    assert [server.processes() for server in seen] == [[], []]


def test_metrics_are_scraped_around_a_block(tmp_path):
    with serve(fake(), log_dir=tmp_path) as (server,):
        server.request("POST", "/generate", json={"sampling_params": {"max_new_tokens": 1}})
        with server.measured() as changes:
            for _ in range(3):
                server.request("POST", "/generate", json={"sampling_params": {"max_new_tokens": 1}})
        assert changes[0].total("fake:requests_total") == 3


def test_answers_of_400_and_above_carry_the_servers_words(tmp_path):
    with serve(fake(), log_dir=tmp_path) as (server,):
        with pytest.raises(ServerError, match=r"GET /nowhere gave 404.*no such page"):
            server.get("/nowhere")


def test_ports_come_from_the_base_that_is_set_and_skip_taken_ones(monkeypatch, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        base = taken.getsockname()[1]
        monkeypatch.setenv("SGLANG_HARNESS_PORT_BASE", str(base))
        port = Server(ServerSpec(command=[sys.executable]), tmp_path).port
        assert base < port < base + 100
