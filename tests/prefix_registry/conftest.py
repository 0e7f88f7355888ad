# SPDX-License-Identifier: Apache-2.0
"""Makes the helper modules beside the tests importable; servers that they share."""

import sys
from pathlib import Path

import pytest

from harness import ServerSpec, free_port
from harness.disaggregation import disaggregated_pair

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def page_hash():
    """As at a server's start, so that no test's first estimate waits for it."""
    from sglang.srt.disaggregation.prefix_registry import digests

    digests.load()


@pytest.fixture(scope="session")
def registry_bootstrap_port() -> int:
    return free_port()


@pytest.fixture(scope="session")
def alone(serve_with):
    """Greedy outputs of one server without any of this, for ``served.PROMPTS``."""
    from served_registry import FLAGS, PROMPTS, TOKENS

    server = serve_with(FLAGS, name="registry-plain")
    return [server.generate(p, TOKENS, ignore_eos=True)["output_ids"] for p in PROMPTS]


@pytest.fixture
def pair(serve_with, registry_bootstrap_port, alone):
    """A prefill and a decode server with the registry, their caches empty."""
    from served_registry import FLAGS

    flags = {**FLAGS, "enable_cross_instance_cache_sync": True}
    prefill, decode = disaggregated_pair(
        ServerSpec(flags=flags, name="registry"), registry_bootstrap_port
    )
    decode = decode.with_flags(
        disaggregation_decode_enable_radix_cache=True,
        cross_instance_cache_config='{"order": "predicted-ready", "transfer_tokens_per_s": 1e6}',
    )
    servers = [serve_with(s.flags, env=s.env, name=s.name) for s in (prefill, decode)]
    for server in servers:
        server.flush_cache()
    return servers
