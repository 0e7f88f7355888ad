# SPDX-License-Identifier: Apache-2.0
"""The estimate endpoint over its real handlers and the server's key check."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from identities import expected, identity, page_digests
from sglang.srt.disaggregation.prefix_registry import decode_side, http_api
from sglang.srt.disaggregation.prefix_registry.decode_side import DecodeRegistry
from sglang.srt.disaggregation.prefix_registry.endpoints import Endpoint
from sglang.srt.disaggregation.prefix_registry.history import History
from sglang.srt.disaggregation.prefix_registry.settings import RegistrySettings
from sglang.srt.disaggregation.prefix_registry.wire import Adapters, Stored
from sglang.srt.utils.auth import add_api_key_middleware

TEXT = "the quick brown fox jumps over"
TOKENS = list(TEXT.encode())
NOWHERE = Endpoint("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")


def pages(count, extra_key=None, salt=None):
    return b"".join(page_digests(TOKENS, 4, extra_key, salt, False)[:count])


class NoSockets:
    """In place of the subscriber: the tests deliver what would come."""

    def __init__(self, **_):
        pass

    def follow(self, stream, endpoint):
        stream.connecting()

    def close(self):
        pass


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(decode_side, "Subscriber", NoSockets)
    made = DecodeRegistry(
        expected(),
        RegistrySettings(),
        peers={"10.0.0.1:8998": [NOWHERE], "10.0.0.2:8998": [NOWHERE]},
    )
    yield made
    made.close()


def fill(registry, instance, *operations):
    """What the instance published, as if its sockets had delivered it."""
    stream = registry._instances[instance].streams[0]
    history = History(identity())
    history.commit(list(operations))
    stream.receive(history.heartbeat())
    for payload in history.answer(stream.due_request()):
        stream.receive_answer(payload)
    assert stream.state == "live"


@pytest.fixture
def client(registry, monkeypatch):
    async def tokenize(text):
        return list(text.encode()), None

    manager = SimpleNamespace(
        prefix_registry=registry, tokenizer=object(), _tokenize_texts=tokenize
    )
    monkeypatch.setattr(http_api, "_manager", lambda: manager)
    app = FastAPI()
    http_api.add_routes(app)
    client = TestClient(app)
    client.manager = manager
    client.app_ = app
    return client


def estimate(client, **body):
    answer = client.post("/prefix_registry/estimate", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["prompt_tokens"] == len(TOKENS)
    return {each["instance"]: each["prefix_tokens"] for each in found["instances"]}


def test_prefix_of_each_instance(client, registry):
    fill(registry, "10.0.0.1:8998", Stored(1, pages(3)))
    assert estimate(client, text=TEXT) == {"10.0.0.1:8998": 12, "10.0.0.2:8998": 0}
    assert estimate(client, input_ids=TOKENS) == {"10.0.0.1:8998": 12, "10.0.0.2:8998": 0}


def test_namespaces_as_in_generate(client, registry):
    lora = pages(2, "tenant" + "e" * 32, "s")
    fill(
        registry,
        "10.0.0.1:8998",
        Adapters({"sql": "e" * 32}),
        Stored(1, pages(3, "tenant", "s")),
        Stored(1, lora),
    )
    first = lambda **body: estimate(client, text=TEXT, **body)["10.0.0.1:8998"]  # noqa: E731
    assert first() == 0
    assert first(extra_key="tenant", cache_salt="s") == 12
    assert first(extra_key="tenant", cache_salt="s", lora_path="sql") == 8
    assert first(extra_key="tenant", cache_salt="s", lora_path="other") == 0


def test_states_are_told(client, registry):
    fill(registry, "10.0.0.1:8998", Stored(1, pages(3)))
    known, unheard = client.get("/prefix_registry").json()["instances"]
    assert known["ranks"][0]["address"] == NOWHERE.updates
    assert known["explicit"]
    assert known["ranks"][0]["state"] == "live" and known["ranks"][0]["blocks"] == 3
    assert unheard["ranks"][0]["state"] == "syncing" and unheard["ranks"][0]["blocks"] == 0


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "malformed|truncated"),
        (b"[]", "Expected `object`"),
        (b"{}", "exactly one of text and input_ids"),
        (b'{"text": "a", "input_ids": [1]}', "exactly one of"),
        (b'{"text": ""}', "text is empty"),
        (b'{"input_ids": []}', "input_ids is empty"),
        (b'{"input_ids": [-1]}', "between 0 and 4294967295"),
        (b'{"input_ids": ["a"]}', "Expected `int`"),
        (b'{"input_ids": [1], "lora": "x"}', "lora"),
    ],
)
def test_bad_requests_say_what_is_wrong(client, body, text):
    answer = client.post("/prefix_registry/estimate", content=body)
    assert answer.status_code == 400
    assert re.search(text, answer.json()["error"], re.IGNORECASE), answer.text
    assert "input_ids" in answer.json()["error"]


def test_without_the_registry_it_says_why(client, monkeypatch):
    client.manager.prefix_registry = None
    monkeypatch.setattr(http_api, "_why_not", lambda: "off")
    assert client.get("/prefix_registry").status_code == 400
    assert client.post("/prefix_registry/estimate", json={"text": "a"}).json() == {"error": "off"}


def test_the_api_key_protects_it(client):
    add_api_key_middleware(client.app_, api_key="secret", admin_api_key=None)
    for method, path in (("GET", "/prefix_registry"), ("POST", "/prefix_registry/estimate")):
        assert client.request(method, path, json={"text": "a"}).status_code == 401
        answer = client.request(
            method, path, json={"text": "a"}, headers={"Authorization": "Bearer secret"}
        )
        assert answer.status_code == 200
