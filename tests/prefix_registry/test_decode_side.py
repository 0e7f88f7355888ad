# SPDX-License-Identifier: Apache-2.0
"""Decode's side without a server: discovery over a real bootstrap application, estimates."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest
import requests
from aiohttp import web
from identities import expected, identity, page_digests
from sglang.srt.disaggregation.prefix_registry import discovery
from sglang.srt.disaggregation.prefix_registry.decode_side import (
    FAKE_BOOTSTRAP_HOST,
    MAX_INSTANCES,
    DecodeRegistry,
)
from sglang.srt.disaggregation.prefix_registry.endpoints import Endpoint
from sglang.srt.disaggregation.prefix_registry.history import History
from sglang.srt.disaggregation.prefix_registry.publisher import Publisher
from sglang.srt.disaggregation.prefix_registry.ready_model import FIRST_SPEED
from sglang.srt.disaggregation.prefix_registry.registry import Prompt
from sglang.srt.disaggregation.prefix_registry.settings import RegistrySettings
from sglang.srt.disaggregation.prefix_registry.translate import Translator

PROMPT = list(range(64))
PAGES = [page.hex() for page in page_digests(PROMPT, 4, None, None, False)]


@pytest.fixture
def closing():
    things = []
    yield lambda thing: things.append(thing) or thing
    for thing in reversed(things):
        thing.close()


def publisher(rank=0):
    return Publisher(
        History(identity(rank=rank)),
        Translator(4, bigram=False),
        host="127.0.0.1",
        heartbeat_s=0.1,
    )


def decode(peers=None, **options):
    settings = RegistrySettings(stale_after_s=0.6, **options.pop("settings", {}))
    return DecodeRegistry(expected(), settings, peers=peers or {}, maintain_every_s=0.05, **options)


def wait_for(condition, seconds=5.0):
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds
        time.sleep(0.01)


class Bootstrap:
    """The bootstrap server's routes on a real aiohttp server."""

    def __init__(self, monkeypatch, on=True):
        import sglang.srt.runtime_context as context

        monkeypatch.setattr(
            context,
            "get_disagg",
            lambda: SimpleNamespace(enable_cross_instance_cache_sync=on),
        )
        self.loop, started = asyncio.new_event_loop(), threading.Event()

        async def start():
            app = web.Application()
            discovery.add_bootstrap_routes(app)
            runner = web.AppRunner(app)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.port = runner.addresses[0][1]
            started.set()

        def run():
            asyncio.set_event_loop(self.loop)
            self.loop.create_task(start())
            self.loop.run_forever()

        self.thread = threading.Thread(target=run)
        self.thread.start()
        started.wait(10)
        self.name = f"127.0.0.1:{self.port}"

    def put(self, body):
        return requests.put(f"http://{self.name}/prefix_registry", data=body, timeout=5)

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


def announce(bootstrap, *publishers, of=None):
    of = of or len(publishers)
    for rank, each in enumerate(publishers):
        discovery.announce(
            "0.0.0.0",
            bootstrap.port,
            discovery.RankEndpoint(rank, each.endpoint.updates, each.endpoint.syncs, of),
        )
    wait_for(lambda: len(endpoints(bootstrap)) == len(publishers))


def endpoints(bootstrap):
    found = discovery.ask(bootstrap.name)
    return {} if found is None else found.endpoints


def test_an_instance_is_found_when_a_request_names_it_and_again_after_it_moved(
    closing, monkeypatch
):
    bootstrap = closing(Bootstrap(monkeypatch))
    first = publisher()
    first.offer([("node_stored", 1, PAGES[:8])], 8)
    announce(bootstrap, first)
    registry = closing(decode())
    assert registry.estimate_all(Prompt(PROMPT)) == []
    registry.estimate(Prompt(PROMPT), bootstrap.name)
    wait_for(lambda: registry.estimate(Prompt(PROMPT), bootstrap.name) == 32)
    first.close()
    wait_for(lambda: registry.estimate(Prompt(PROMPT), bootstrap.name) == 0)
    [found] = registry.estimate_all(Prompt(PROMPT))
    assert found["ranks"][0]["state"] in ("stale", "syncing")
    second = closing(publisher())
    second.offer([("node_stored", 1, PAGES[:3])], 3)
    announce(bootstrap, second)
    wait_for(lambda: registry.estimate(Prompt(PROMPT), bootstrap.name) == 12)


def test_ranks_have_registries_of_their_own(closing, monkeypatch):
    bootstrap = closing(Bootstrap(monkeypatch))
    ranks = [closing(publisher(rank)) for rank in range(2)]
    ranks[0].offer([("node_stored", 1, PAGES[:2])], 2)
    ranks[1].offer([("node_stored", 1, PAGES[:5])], 5)
    announce(bootstrap, *ranks)
    registry = closing(decode())
    name = bootstrap.name
    wait_for(lambda: registry.estimate(Prompt(PROMPT), name) == 20)
    wait_for(lambda: registry.estimate(Prompt(PROMPT), name, 0) == 8)
    assert registry.estimate(Prompt(PROMPT), name, 1) == 20
    [found] = registry.estimate_all(Prompt(PROMPT))
    assert found["prefix_tokens"] == 20
    assert [each["prefix_tokens"] for each in found["ranks"]] == [8, 20]


def test_a_rank_that_announces_itself_later_is_found(closing, monkeypatch):
    bootstrap = closing(Bootstrap(monkeypatch))
    ranks = [closing(publisher(rank)) for rank in range(2)]
    ranks[1].offer([("node_stored", 1, PAGES[:5])], 5)
    announce(bootstrap, ranks[0], of=2)
    registry = closing(decode())
    name = bootstrap.name
    registry.estimate(Prompt(PROMPT), name)
    wait_for(lambda: [r["state"] for r in registry.describe()[0]["ranks"]] == ["live"])
    announce(bootstrap, *ranks)
    wait_for(lambda: registry.estimate(Prompt(PROMPT), name, 1) == 20)


def test_a_bad_endpoint_does_not_end_the_reading_of_others(closing):
    source = closing(publisher())
    source.offer([("node_stored", 1, PAGES)], 16)
    bad = Endpoint("tcp://bad host:1", "tcp://bad host:2")
    registry = closing(decode({"10.9.9.8:1": [bad], "10.9.9.9:1": [source.endpoint]}))
    wait_for(lambda: registry.estimate(Prompt(PROMPT), "10.9.9.9:1") == 64)
    assert registry.estimate(Prompt(PROMPT), "10.9.9.8:1") == 0


def test_peers_are_read_without_the_bootstrap(closing):
    source = closing(publisher())
    source.offer([("node_stored", 1, PAGES)], 16)

    def never(instance):
        raise AssertionError("asked the bootstrap")

    registry = closing(decode({"10.9.9.9:1": [source.endpoint]}, ask=never))
    wait_for(lambda: registry.estimate(Prompt(PROMPT), "10.9.9.9:1") == 64)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"rank": 0}',
        b'{"rank": -1, "updates": "tcp://h:1", "syncs": "tcp://h:2"}',
        b'{"rank": 0, "updates": "ipc://x", "syncs": "tcp://h:2"}',
        b'{"rank": 9999, "updates": "tcp://h:1", "syncs": "tcp://h:2"}',
        b'{"rank": 0, "updates": "tcp://h:1", "syncs": "tcp://h:2", "of": 0}',
        b'{"rank": 0, "updates": "tcp://h h:1", "syncs": "tcp://h:2"}',
    ],
)
def test_the_bootstrap_takes_only_endpoints(closing, monkeypatch, body):
    bootstrap = closing(Bootstrap(monkeypatch))
    assert bootstrap.put(body).status_code == 400
    assert endpoints(bootstrap) == {}


def test_without_the_flag_the_bootstrap_has_no_such_route(closing, monkeypatch):
    bootstrap = closing(Bootstrap(monkeypatch, on=False))
    assert bootstrap.put(b"{}").status_code == 404
    assert endpoints(bootstrap) == {}


def test_strangers_cannot_make_it_grow(closing):
    asked = []
    registry = closing(decode(ask=asked.append))
    for i in range(3 * MAX_INSTANCES):
        registry.estimate(Prompt(PROMPT), f"10.0.{i // 256}.{i % 256}:8998")
    assert len(registry.describe()) == MAX_INSTANCES


def request(rid, room, tokens=PROMPT, **more):
    fields = {
        "rid": rid,
        "bootstrap_host": "10.9.9.9",
        "bootstrap_port": 1,
        "bootstrap_room": room,
        "disagg_prefill_dp_rank": None,
        "input_ids": tokens,
        "extra_key": None,
        "cache_salt": None,
        "lora_name": None,
        "predicted_ready_s": None,
    }
    return SimpleNamespace(**{**fields, **more})


def test_cached_prompts_are_predicted_earlier(closing):
    source = closing(publisher())
    source.offer([("node_stored", 1, PAGES)], 16)
    registry = closing(
        decode({"10.9.9.9:1": [source.endpoint]}, settings={"order": "predicted-ready"})
    )
    wait_for(lambda: registry.estimate(Prompt(PROMPT), "10.9.9.9:1") == 64)
    hit, miss = request("hit", 0), request("miss", 0, [9] * 6400, bootstrap_host="10.9.9.8")
    registry.on_request(miss)
    registry.on_request(hit)
    assert hit.predicted_ready_s < miss.predicted_ready_s
    registry.on_first_token("hit", time.perf_counter(), None)
    assert registry.ready_model.tokens_per_s("10.9.9.9:1") != FIRST_SPEED
    # An abort tells nothing about the instance's speed.
    registry.on_first_token("miss", time.perf_counter(), {"type": "abort"})
    assert registry.ready_model.tokens_per_s("10.9.9.8:1") == FIRST_SPEED
    assert not registry.ready_model._waiting
    off = closing(decode({"10.9.9.9:1": [source.endpoint]}))
    plain = request("x", 0)
    off.on_request(plain)
    assert plain.predicted_ready_s is None


def test_the_room_says_which_rank_a_request_goes_to(closing):
    ranks = [closing(publisher(rank)) for rank in range(2)]
    ranks[1].offer([("node_stored", 1, PAGES)], 16)
    registry = closing(
        decode(
            {"10.9.9.9:1": [each.endpoint for each in ranks]}, settings={"order": "predicted-ready"}
        )
    )
    wait_for(lambda: registry.estimate(Prompt(PROMPT), "10.9.9.9:1") == 64)
    for room, tokens in ((6, 64), (7, 1)):
        registry.on_request(request(str(room), room))
        instance, missing, _ = registry.ready_model._waiting[str(room)]
        assert (instance, missing) == (f"10.9.9.9:1/{room % 2}", tokens)
    registry.on_request(request("told", 6, disagg_prefill_dp_rank=1))
    assert registry.ready_model._waiting["told"][:2] == ("10.9.9.9:1/1", 1)


def test_a_request_that_cannot_be_predicted_is_served_all_the_same(closing):
    registry = closing(decode(ask=lambda name: None, settings={"order": "predicted-ready"}))
    odd = request("odd", 0, [-5])
    odd.extra_key = 7
    registry.on_request(odd)
    registry.on_request(request("no host", 0, bootstrap_host=None))
    assert registry.ready_model.tokens_per_s("nobody") > 0


def test_ipv6_instances_are_named_as_in_urls(closing):
    asked = []
    registry = closing(decode(ask=asked.append))
    registry.on_request(request("six", 0, bootstrap_host="::1"))
    wait_for(lambda: asked)
    assert asked[0] == "[::1]:1"


def test_upstreams_warm_up_names_no_instance(closing):
    asked = []
    registry = closing(decode(ask=asked.append))
    registry.on_request(request("warm-up", 0, bootstrap_host=FAKE_BOOTSTRAP_HOST))
    registry.on_request(request("real", 0))
    wait_for(lambda: asked)
    assert set(asked) == {"10.9.9.9:1"}
    assert registry.estimate_all(Prompt(PROMPT)) == [], "it has not said anything"


def test_wildcards_are_not_advertised():
    bound = Endpoint("tcp://0.0.0.0:7000", "tcp://[::]:7001")
    assert discovery.advertised(bound, "10.1.1.1") == Endpoint(
        "tcp://10.1.1.1:7000", "tcp://10.1.1.1:7001"
    )
