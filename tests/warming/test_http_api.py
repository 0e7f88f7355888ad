# SPDX-License-Identifier: Apache-2.0
"""The endpoint over its real handlers and key check, with the planner behind it."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sglang.srt.entrypoints import http_server
from sglang.srt.managers.io_struct import msgpack_decode, msgpack_encode
from sglang.srt.mem_cache.cache_warming import control, http_api
from sglang.srt.runtime_context import get_parallel
from sglang.srt.utils.auth import add_api_key_middleware
from warming_world import World, prompt


class Tokenizer:
    """A byte is a token."""

    is_fast = True

    def __call__(self, texts):
        return {"input_ids": [list(text.encode()) for text in texts]}


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, [prompt("listed", 0, 30)])


@pytest.fixture
def client(world, monkeypatch):
    async def ask(req):
        # Through the wire format of both directions.
        with get_parallel().override(dp_rank=None):
            answer = control.answer(world.planner, msgpack_decode(msgpack_encode(req)))
        return [msgpack_decode(msgpack_encode(answer))]

    manager = SimpleNamespace(
        tokenizer=Tokenizer(),
        model_config=SimpleNamespace(vocab_size=256),
        auto_create_handle_loop=lambda: None,
        cache_warming_communicator=ask,
    )
    monkeypatch.setattr(
        http_server, "get_global_state", lambda: SimpleNamespace(tokenizer_manager=manager)
    )
    monkeypatch.setattr(
        http_api, "get_memory", lambda: SimpleNamespace(cache_warming_prompts="prompts.json")
    )
    app = FastAPI()
    http_api.add_routes(app)
    return TestClient(app)


def names(client):
    (rank,) = client.get("/cache_warming").json()["ranks"]
    return [entry["name"] for entry in rank["prompts"]]


def delete(client, body):
    return client.request("DELETE", "/cache_warming", json=body)


def test_list_add_and_remove(client, world):
    world.idle()
    (rank,) = client.get("/cache_warming").json()["ranks"]
    assert rank["dp_rank"] == 0
    assert rank["warmed_tokens"] == 30
    assert rank["prompts"][0]["state"] == "warm"
    added = client.post(
        "/cache_warming",
        json={"prompts": [{"text": "hello there"}, {"name": "t", "text": "x", "priority": 3}]},
    )
    assert added.status_code == 200
    assert added.json()["message"] == "added 'prompt-0', 't'"
    assert names(client) == ["t", "listed", "prompt-0"]
    world.idle()
    assert world.cached(list(b"hello there")) == 11
    assert delete(client, {"names": ["t", "listed"]}).json()["message"] == "removed 't', 'listed'"
    assert names(client) == ["prompt-0"]
    assert world.cached(range(30)) == 30  # ordinary cache now


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompts": [{"txt": "x"}]}, "prompt 0: unknown key 'txt'"),
        ({"prompts": [{"name": "listed", "text": "x"}]}, "the name 'listed' is taken"),
        ({"prompts": [{"name": "big", "text": "x" * 300}]}, "'big': needs 300 tokens"),
        ({"prompts": [{"input_ids": [256]}]}, "outside the vocabulary; ids must be below 256"),
        ({"prompts": "all"}, '"prompts" must be a list, got str'),
        ({"prompt": []}, 'of the form {"prompts": [...]}'),
        ([], 'of the form {"prompts": [...]}'),
    ],
)
def test_bad_additions_change_nothing(client, body, expected):
    answer = client.post("/cache_warming", json=body)
    assert answer.status_code == 400
    assert expected in answer.json()["error"]
    assert names(client) == ["listed"]


def test_one_bad_entry_refuses_all(client):
    answer = client.post(
        "/cache_warming", json={"prompts": [{"text": "good"}, {"name": "big", "text": "x" * 300}]}
    )
    assert answer.status_code == 400
    assert names(client) == ["listed"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"names": ["nobody", "listed"]}, "no prompt is called 'nobody'; the names are 'listed'"),
        ({"names": "listed"}, '"names" must be a list of strings'),
        ({"name": "listed"}, 'of the form {"names": [...]}'),
    ],
)
def test_bad_removals_change_nothing(client, body, expected):
    answer = delete(client, body)
    assert answer.status_code == 400
    assert expected in answer.json()["error"]
    assert names(client) == ["listed"]


def test_a_body_that_is_not_json(client):
    answer = client.post("/cache_warming", content=b"{")
    assert answer.status_code == 400
    assert "the body is not JSON" in answer.json()["error"]


def test_without_the_flag_it_says_so(client, monkeypatch):
    off = SimpleNamespace(cache_warming_prompts=None)
    monkeypatch.setattr(http_api, "get_memory", lambda: off)
    answer = client.get("/cache_warming")
    assert answer.status_code == 400
    assert "--cache-warming-prompts FILE" in answer.json()["error"]


@pytest.mark.parametrize(
    ("keys", "sent", "status"),
    [
        ({"api_key": None, "admin_api_key": None}, None, 200),
        ({"api_key": "user", "admin_api_key": None}, None, 401),
        ({"api_key": "user", "admin_api_key": None}, "user", 200),
        ({"api_key": "user", "admin_api_key": "admin"}, "user", 401),
        ({"api_key": "user", "admin_api_key": "admin"}, "admin", 200),
    ],
)
def test_it_follows_the_servers_keys(client, keys, sent, status):
    add_api_key_middleware(client.app, **keys)
    headers = {"Authorization": f"Bearer {sent}"} if sent else {}
    for method in ("GET", "POST", "DELETE"):
        answer = client.request(method, "/cache_warming", headers=headers, json={"names": []})
        assert (answer.status_code == 401) == (status == 401), method


def test_answers_survive_the_wire():
    struct = control.CacheWarmingReqOutput(success=True, state={"a": [1, None, 0.5, "x", True]})
    assert msgpack_decode(msgpack_encode(struct)) == struct
    assert isinstance(struct, msgspec.Struct)
