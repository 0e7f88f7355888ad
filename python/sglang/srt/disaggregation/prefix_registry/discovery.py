# SPDX-License-Identifier: Apache-2.0
"""Endpoints over the PD bootstrap: every prefill rank puts its own, decode asks.

The bootstrap server is upstream's, as open as its other routes; with CURVE keys a
publisher that is not the one meant cannot be read.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

import msgspec
import requests
from sglang.srt.disaggregation.prefix_registry.endpoints import (
    WILDCARDS,
    Endpoint,
    EndpointError,
    parse_tcp,
)
from sglang.srt.utils.network import NetworkAddress

if TYPE_CHECKING:
    from aiohttp import web

logger = logging.getLogger(__name__)

PATH = "/prefix_registry"
MAX_RANKS = 512
_TIMEOUT_S = 2.0


class RankEndpoint(msgspec.Struct, frozen=True):
    """Where a rank publishes, one of ``of``; addresses as in ``Endpoint``."""

    rank: int
    updates: str
    syncs: str
    of: int = 1

    def endpoint(self) -> Endpoint:
        """Its sockets.

        Raises:
            EndpointError: it names none.
        """
        for address in (self.updates, self.syncs):
            _, port = parse_tcp(address, what="an endpoint from the PD bootstrap")
            if not port:
                raise EndpointError(f"{address!r} from the PD bootstrap has port 0")
        if not 0 <= self.rank < MAX_RANKS:
            raise EndpointError(
                f"rank {self.rank} is not between 0 and {MAX_RANKS - 1}"
            )
        if not 1 <= self.of <= MAX_RANKS:
            raise EndpointError(f"{self.of} ranks are not between 1 and {MAX_RANKS}")
        return Endpoint(self.updates, self.syncs)


@dataclass(frozen=True)
class Found:
    """Endpoints by rank, and how many ranks there shall be."""

    endpoints: dict[int, Endpoint]
    ranks: int


def add_bootstrap_routes(app: web.Application) -> None:
    """Serve ``/prefix_registry`` from the bootstrap server where the flag is set."""
    from aiohttp import web
    from sglang.srt.runtime_context import get_disagg

    if not get_disagg().enable_cross_instance_cache_sync:
        return
    ranks: dict[int, RankEndpoint] = {}

    async def put(request: web.Request) -> web.Response:
        try:
            told = msgspec.json.decode(await request.read(), type=RankEndpoint)
            told.endpoint()
        except (msgspec.MsgspecError, EndpointError) as error:
            return web.Response(text=str(error), status=400)
        ranks[told.rank] = told
        return web.Response(text="OK")

    async def get(request: web.Request) -> web.Response:
        body = msgspec.json.encode(sorted(ranks.values(), key=lambda each: each.rank))
        return web.Response(body=body, content_type="application/json")

    app.router.add_put(PATH, put)
    app.router.add_get(PATH, get)


def announce(bootstrap_host: str, bootstrap_port: int, endpoint: RankEndpoint) -> None:
    """Tell the bootstrap server in the background, until it took it."""
    # As upstream's own registration: a wildcard is reached over its loopback.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bootstrap_host, bootstrap_host)
    url = NetworkAddress(host, bootstrap_port).to_url() + PATH

    def run() -> None:
        delay, complained = 0.5, False
        while True:
            try:
                answer = requests.put(
                    url, data=msgspec.json.encode(endpoint), timeout=_TIMEOUT_S
                )
                if answer.ok:
                    return
                problem = f"status {answer.status_code}: {answer.text[:200]}"
            except requests.RequestException as error:
                problem = type(error).__name__
            if delay >= 8 and not complained:
                complained = True
                logger.warning(
                    "Prefix registry: cannot tell the PD bootstrap at %s (%s); trying "
                    "on. Decode instances find this one only by "
                    "--cross-instance-cache-peers until then",
                    url,
                    problem,
                )
            time.sleep(delay)
            delay = min(2 * delay, 10.0)

    threading.Thread(target=run, name="prefix-registry-announce", daemon=True).start()


def ask(instance: str) -> Optional[Found]:
    """Endpoints of the instance with this bootstrap address (HOST:PORT).

    None where it cannot be asked; none in it where it publishes nothing (yet).
    """
    try:
        answer = requests.get(f"http://{instance}{PATH}", timeout=_TIMEOUT_S)
        if answer.status_code == 404:
            return Found({}, 1)
        answer.raise_for_status()
        told = msgspec.json.decode(answer.content, type=list[RankEndpoint])
        endpoints = {each.rank: each.endpoint() for each in told}
        return Found(endpoints, max((each.of for each in told), default=1))
    except (requests.RequestException, msgspec.MsgspecError, EndpointError) as error:
        logger.debug("Prefix registry: asking %s: %s", instance, error)
        return None


def advertised(endpoint: Endpoint, own_address: str) -> Endpoint:
    """The endpoint as others reach it: a wildcard becomes ``own_address``."""

    def reachable(address: str) -> str:
        host, port = parse_tcp(address, what="bound address")
        if host not in WILDCARDS:
            return address
        return f"tcp://{NetworkAddress(own_address, port).to_host_port_str()}"

    return Endpoint(reachable(endpoint.updates), reachable(endpoint.syncs))
