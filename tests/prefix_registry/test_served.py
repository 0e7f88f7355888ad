# SPDX-License-Identifier: Apache-2.0
"""A prefill and a decode server with the registry, on loopback."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import zmq.auth
from identities import HEAL_S
from served_registry import (
    FLAGS,
    LONG,
    NEEDS_A_PAIR,
    PROMPTS,
    TOKENS,
    address,
    estimates,
    pages,
    prompt,
    serve,
    told,
    wait_for,
)
from sglang.srt.disaggregation.prefix_registry.endpoints import Endpoint, load_keys
from sglang.srt.disaggregation.prefix_registry.stream import Expected, Stream
from sglang.srt.disaggregation.prefix_registry.subscriber import Subscriber

from harness import ServerError, ServerSpec, free_port
from harness.disaggregation import disaggregated_pair

pytestmark = NEEDS_A_PAIR


def cached(prefill, decode, tokens=LONG, **namespace) -> int:
    """What the endpoint says of the pair's prefill instance."""
    return estimates(decode, tokens, **namespace).get(address(prefill), 0)


def test_output_is_that_of_one_server(pair, alone):
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        answers = list(threads.map(lambda tokens: serve(*pair, tokens), PROMPTS))
    assert [answer["decode"]["output_ids"] for answer in answers] == alone


def test_estimate_is_what_prefill_then_finds_cached(pair):
    for tokens in PROMPTS:
        assert serve(*pair, tokens)["prefill"]["meta_info"]["cached_tokens"] in (0, 96)
    for tokens in PROMPTS:
        wait_for(lambda t=tokens: cached(*pair, t) == pages(len(t)))
        answer = serve(*pair, tokens)
        # The engine always computes the last token, and so the last page where it ends one.
        # Decode counts what need not be moved, which is all that it holds itself.
        usable, kept = pages(len(tokens) - 1), pages(len(tokens))
        assert answer["prefill"]["meta_info"]["cached_tokens"] == usable
        assert answer["decode"]["meta_info"]["cached_tokens"] == kept
    longer = LONG + prompt(64, 7)
    assert cached(*pair, longer) == len(LONG)
    assert serve(*pair, longer)["prefill"]["meta_info"]["cached_tokens"] == len(LONG)


def test_namespaces_are_told_apart(pair):
    prefill, decode = pair
    serve(prefill, decode, LONG)
    wait_for(lambda: cached(prefill, decode) == len(LONG))
    for namespace in ({"extra_key": "x"}, {"cache_salt": "x"}):
        assert cached(prefill, decode, **namespace) == 0


def test_text_is_tokenized_as_by_generate(pair):
    prefill, decode = pair
    text = "A sentence that is long enough to fill more than two pages of tokens, surely."
    count = serve(prefill, decode, text)["prefill"]["meta_info"]["prompt_tokens"]
    assert count > 16
    found = {}

    def known() -> bool:
        found.update(decode.post("/prefix_registry/estimate", {"text": text}))
        return [each["prefix_tokens"] for each in found["instances"]] == [pages(count)]

    wait_for(known)
    assert found["prompt_tokens"] == count


def test_flush_and_weight_update_are_followed(pair, tiny_model):
    prefill, decode = pair
    serve(prefill, decode, LONG)
    wait_for(lambda: cached(prefill, decode) == len(LONG))
    prefill.flush_cache()
    wait_for(lambda: cached(prefill, decode) == 0)
    serve(prefill, decode, LONG)
    wait_for(lambda: cached(prefill, decode) == len(LONG))
    before = told(decode, prefill)["restarts"]
    prefill.post("/update_weights_from_disk", {"model_path": str(tiny_model)}, timeout=120)

    def restarted() -> bool:
        rank = told(decode, prefill)
        return rank["restarts"] > before and rank["state"] == "live"

    wait_for(restarted)
    assert cached(prefill, decode) == 0


def test_metrics_of_both_sides_agree(pair):
    prefill, decode = pair
    serve(prefill, decode, LONG)
    wait_for(lambda: cached(prefill, decode) == len(LONG))

    def agree() -> bool:
        published = prefill.metrics().total("sglang:prefix_registry_publisher_resident_blocks")
        read = decode.metrics().total("sglang:prefix_registry_reader_blocks")
        return published == read == len(LONG) // 16

    wait_for(agree, 10)
    assert prefill.metrics().total("sglang:prefix_registry_publisher_up") == 1
    assert decode.metrics().total("sglang:prefix_registry_reader_live") == 1
    assert decode.metrics().total("sglang:prefix_registry_estimates_total") > 0


def test_prefill_has_no_registry_and_says_so(pair):
    with pytest.raises(ServerError, match="400.*decode instances keep"):
        pair[0].get("/prefix_registry")


def test_prefill_killed_and_restarted(pair, serve_with):
    prefill, decode = pair
    serve(prefill, decode, LONG)
    wait_for(lambda: cached(prefill, decode) == len(LONG))
    for process in prefill.processes():
        os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: cached(prefill, decode) == 0, HEAL_S)
    wait_for(lambda: not prefill.alive, 20)
    prefill.stop()
    # Upstream's own connections are renewed once two of its heartbeats failed; a prefill that is
    # back before them gets no requests through.
    lost = f"Lost connection with prefill instance (bootstrap_addr: {address(prefill)})"
    wait_for(lambda: lost in decode.log_path.read_text(errors="replace"), 40)
    spec = prefill.spec
    again = serve_with(spec.flags, env=spec.env, name=spec.name)
    wait_for(lambda: told(decode, again)["state"] == "live")
    assert cached(again, decode) == 0
    assert len(serve(again, decode, LONG)["decode"]["output_ids"]) == TOKENS
    wait_for(lambda: cached(again, decode) == len(LONG), HEAL_S)


def two_free_ports() -> int:
    """The first of two neighbouring ports that are free now."""
    while True:
        first = free_port()
        with socket.socket() as second, contextlib.suppress(OSError):
            second.bind(("127.0.0.1", first + 1))
            return first


def test_keys_and_explicit_peers(serve_with, tmp_path):
    for name in ("prefill", "decode", "stranger"):
        zmq.auth.create_certificates(tmp_path, name)
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (tmp_path / "decode.key").rename(allowed / "decode.key")
    port = two_free_ports()
    flags = {**FLAGS, "enable_cross_instance_cache_sync": True}
    prefill, decode = disaggregated_pair(ServerSpec(flags=flags, name="keys"), free_port())
    prefill = prefill.with_flags(
        cross_instance_cache_config={
            "bind": f"tcp://127.0.0.1:{port}",
            "curve_secret_key": str(tmp_path / "prefill.key_secret"),
            "curve_allowed_clients": str(allowed),
        }
    )
    server_key = str(tmp_path / "prefill.key")
    decode = decode.with_flags(
        cross_instance_cache_peers=[
            f"127.0.0.1:{prefill.flags['disaggregation_bootstrap_port']}=tcp://127.0.0.1:{port}"
        ],
        cross_instance_cache_config={
            "curve_secret_key": str(tmp_path / "decode.key_secret"),
            "curve_server_key": server_key,
        },
    )
    prefill, decode = (serve_with(s.flags, env=s.env, name=s.name) for s in (prefill, decode))
    # Known before any request names the instance.
    wait_for(lambda: told(decode, prefill)["state"] == "live")
    assert told(decode, prefill)["address"] == f"tcp://127.0.0.1:{port}"
    serve(prefill, decode, LONG)
    wait_for(lambda: cached(prefill, decode) == len(LONG))
    for keys in (None, load_keys(str(tmp_path / "stranger.key_secret"), server_key)):
        subscriber = Subscriber(keys=keys)
        stream = Stream(Expected("tiny", "float32/auto", 16))
        subscriber.follow(
            stream, Endpoint(f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}")
        )
        time.sleep(1.5)
        subscriber.close()
        assert stream.heard_at is None, "it read without being allowed to"
