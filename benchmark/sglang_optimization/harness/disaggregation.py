# SPDX-License-Identifier: Apache-2.0
"""A prefill and a decode server on this machine that hand KV over through Mooncake's TCP transport.

It needs Mooncake's Python package (on a machine without GPU ``mooncake-transfer-engine-non-cuda``,
which loads Debian's ``libibverbs1``)::

    prefill, decode = disaggregated_pair(ServerSpec(model), free_port())
    with serve(prefill, decode) as (prefill, decode):
        print(generate_on_pair(prefill, decode, "Hello", 16)["decode"]["output_ids"])

A load balancer does no more than :func:`generate_on_pair`: it sends the same request to both, with
the prefill side's bootstrap address and a number, the room, by which they find each other.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from .server import Server
from .spec import ServerSpec

# Mooncake and upstream look for an address of the machine otherwise, and listen on all of them.
LOOPBACK_ENV: Mapping[str, str] = {
    "MC_TCP_BIND_ADDRESS": "127.0.0.1",
    "SGLANG_HOST_IP": "127.0.0.1",
}


def missing_transfer_engine() -> str | None:
    """Returns why KV cannot be handed over on this machine, or ``None`` when it can."""
    try:
        importlib.import_module("mooncake.engine")
    except ImportError as error:
        return f"Mooncake's transfer engine cannot be loaded: {error}"
    return None


def disaggregated_pair(spec: ServerSpec, bootstrap_port: int) -> tuple[ServerSpec, ServerSpec]:
    """Returns the two servers' specs.

    Args:
        spec: model and flags of both; add to what is returned what only one shall have.
        bootstrap_port: a free port, on which the prefill server tells where its KV is.
    """
    env = {**spec.env, **LOOPBACK_ENV}

    def side(mode: str, **flags: float) -> ServerSpec:
        common = {"disaggregation_mode": mode, "disaggregation_transfer_backend": "mooncake_tcp"}
        return replace(
            spec, name=f"{spec.name}-{mode}", env=env, flags={**spec.flags, **common, **flags}
        )

    prefill = side("prefill", disaggregation_bootstrap_port=bootstrap_port)
    # Retracted requests are kept in host memory, whose size upstream would take from what is free
    # beyond 10 GiB, refusing to start where that is nothing.
    return prefill, side("decode", hicache_ratio=2.0)


def generate_on_pair(
    prefill: Server,
    decode: Server,
    prompt: str | Sequence[int],
    max_new_tokens: int = 16,
    *,
    rid: str | None = None,
    **sampling: Any,
) -> dict[str, dict[str, Any]]:
    """Generates greedily on a pair; see :meth:`Server.generate`.

    Args:
        rid: the request's name on both sides, for ``/abort_request``.

    Returns:
        The answer of each side: ``{"prefill": ..., "decode": ...}``. The output is the decode
        side's; the prefill side answers with its first token.
    """
    kind = "text" if isinstance(prompt, str) else "input_ids"
    body = {
        kind: prompt if isinstance(prompt, str) else list(prompt),
        "sampling_params": {"temperature": 0, "max_new_tokens": max_new_tokens, **sampling},
        "rid": rid,
        "bootstrap_host": prefill.spec.host,
        "bootstrap_port": prefill.spec.flags["disaggregation_bootstrap_port"],
        "bootstrap_room": random.getrandbits(62),
    }
    with ThreadPoolExecutor(2) as threads:
        answers = {
            name: threads.submit(server.post, "/generate", body, timeout=300)
            for name, server in (("prefill", prefill), ("decode", decode))
        }
        return {name: answer.result() for name, answer in answers.items()}
