# SPDX-License-Identifier: Apache-2.0
"""Flags: what is refused before anything is loaded, and in which words."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import zmq.auth
from sglang.srt.disaggregation.prefix_registry.endpoints import (
    Endpoint,
    EndpointError,
    bind_host,
    parse_tcp,
    ports_of_rank,
)
from sglang.srt.disaggregation.prefix_registry.settings import (
    check_prefix_registry,
    parse_peers,
    parse_settings,
)

OFF = {
    "enable_cross_instance_cache_sync": False,
    "cross_instance_cache_peers": None,
    "cross_instance_cache_config": None,
    "disaggregation_mode": "null",
    "enable_pd_role_switch": False,
    "disable_radix_cache": False,
    "elastic_ep_backend": None,
    "tokenizer_worker_num": 1,
}


def check(**changes):
    check_prefix_registry(SimpleNamespace(**{**OFF, **changes}))


def on(mode, **changes):
    check(enable_cross_instance_cache_sync=True, disaggregation_mode=mode, **changes)


def test_what_works():
    check()
    on("prefill")
    on("decode")
    on("decode", disable_radix_cache=True)
    on("decode", cross_instance_cache_peers=["h:1=tcp://10.0.0.1:7000"])
    on("prefill", cross_instance_cache_config='{"bind": "tcp://10.0.0.1:0"}')


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cross_instance_cache_config": "{}"}, "has no effect without --enable-cross-instance"),
        ({"cross_instance_cache_peers": []}, "has no effect without"),
        (
            {"enable_cross_instance_cache_sync": True},
            "needs --disaggregation-mode prefill or decode",
        ),
    ],
)
def test_without_the_flag_or_the_mode(changes, text):
    with pytest.raises(ValueError, match=text):
        check(**changes)


@pytest.mark.parametrize(
    ("mode", "changes", "text"),
    [
        ("prefill", {"enable_pd_role_switch": True}, "--enable-pd-role-switch: who publishes"),
        ("prefill", {"disable_radix_cache": True}, "--disable-radix-cache: without a prefix cache"),
        ("prefill", {"elastic_ep_backend": "mooncake"}, "--elastic-ep-backend"),
        ("prefill", {"cross_instance_cache_peers": ["h:1=tcp://h:2"]}, "reads from nobody"),
        ("decode", {"tokenizer_worker_num": 2}, "--tokenizer-worker-num above 1"),
        ("decode", {"cross_instance_cache_peers": ["h:1"]}, "'h:1' is not of the form"),
        ("decode", {"cross_instance_cache_peers": ["h=tcp://h:1"]}, "is not of the form"),
        ("decode", {"cross_instance_cache_peers": ["h:1=udp://h:2"]}, "write tcp://HOST:PORT"),
        ("decode", {"cross_instance_cache_peers": ["h:1=tcp://h:0"]}, "needs the port"),
        ("decode", {"cross_instance_cache_peers": ["h:1=tcp://h:2", "h:1=tcp://h:4"]}, "twice"),
        ("decode", {"cross_instance_cache_peers": ["h:1=tcp://h:2,tcp://h:2"]}, "address twice"),
    ],
)
def test_combinations_that_cannot_work(mode, changes, text):
    with pytest.raises(ValueError, match=text):
        on(mode, **changes)


@pytest.mark.parametrize(
    ("mode", "config", "text"),
    [
        ("prefill", "[]", "must be an object"),
        ("prefill", "{", "settings are model, "),
        ("prefill", '{"bnd": 1}', "bnd"),
        ("prefill", '{"queue_blocks": 0}', "queue_blocks must be at least 1, not 0"),
        ("prefill", '{"heartbeat_s": 0}', "heartbeat_s must be a number above 0, not 0"),
        ("prefill", '{"heartbeat_s": 1.5}', "heartbeat_s must be below 1, not 1.5"),
        ("prefill", '{"order": "arrival"}', "order is a setting of decode instances"),
        ("prefill", '{"bind": "10.0.0.1:1"}', "bind: '10.0.0.1:1' is not an address"),
        ("decode", '{"bind": "tcp://h:1"}', "bind is a setting of prefill instances"),
        ("decode", '{"order": "random"}', "order"),
        ("decode", '{"max_blocks": 4294967296}', "at most 2147483648"),
        ("decode", '{"receive_updates": 9999999999}', "receive_updates must be at most 1000000"),
        ("decode", '{"max_wait_s": -1}', "max_wait_s must be a number above 0"),
        ("decode", '{"curve_server_key": "k"}', "cannot read a key|need curve_secret_key"),
        ("prefill", '{"curve_secret_key": "/nowhere"}', "curve_secret_key: cannot read a key"),
    ],
)
def test_settings_that_are_refused(mode, config, text):
    with pytest.raises(ValueError, match=text):
        on(mode, cross_instance_cache_config=config)


def test_keys(tmp_path):
    zmq.auth.create_certificates(tmp_path, "a")
    secret, public = str(tmp_path / "a.key_secret"), str(tmp_path / "a.key")
    on("prefill", cross_instance_cache_config=json.dumps({"curve_secret_key": secret}))
    with pytest.raises(ValueError, match="needs curve_server_key"):
        on("decode", cross_instance_cache_config=json.dumps({"curve_secret_key": secret}))
    both = {"curve_secret_key": secret, "curve_server_key": public}
    on("decode", cross_instance_cache_config=json.dumps(both))
    with pytest.raises(ValueError, match="holds no secret key"):
        on("prefill", cross_instance_cache_config=json.dumps({"curve_secret_key": public}))
    allowed = {"curve_secret_key": secret, "curve_allowed_clients": str(tmp_path / "none")}
    with pytest.raises(ValueError, match="is not a folder"):
        on("prefill", cross_instance_cache_config=json.dumps(allowed))


def test_peers_give_an_address_a_rank():
    assert parse_peers(["[::1]:8998=tcp://[::1]:7000,tcp://10.0.0.2:7002"]) == {
        "[::1]:8998": [
            Endpoint("tcp://[::1]:7000", "tcp://[::1]:7001"),
            Endpoint("tcp://10.0.0.2:7002", "tcp://10.0.0.2:7003"),
        ]
    }
    assert parse_peers(None) == {}


def test_a_wildcard_host_is_not_bound(monkeypatch):
    monkeypatch.setenv("SGLANG_HOST_IP", "10.1.2.3")
    for wildcard in ("0.0.0.0", "::"):
        assert bind_host(wildcard) == "10.1.2.3"
    assert bind_host("127.0.0.1") == "127.0.0.1"


def test_ports_of_ranks():
    assert [ports_of_rank(7000, rank) for rank in range(3)] == [
        (7000, 7001),
        (7002, 7003),
        (7004, 7005),
    ]
    assert ports_of_rank(0, 5) == (0, 0)
    with pytest.raises(EndpointError, match="choose a lower port than 65534"):
        ports_of_rank(65534, 1)


def test_addresses():
    assert parse_tcp("tcp://[fe80::1]:80", what="x") == ("fe80::1", 80)
    for bad in ("tcp://h", "tcp://:1", "h:1", "tcp://h:99999", "ipc://x"):
        with pytest.raises(EndpointError, match="x: .* is not an address"):
            parse_tcp(bad, what="x")


def test_defaults():
    assert parse_settings(None, "decode").order == "arrival"
