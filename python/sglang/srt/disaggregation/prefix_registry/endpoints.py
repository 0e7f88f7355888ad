# SPDX-License-Identifier: Apache-2.0
"""Addresses and keys of the registry's sockets.

A publisher has two sockets: updates (PUB) and syncs (ROUTER). Given a port P they are
P and P + 1 for rank 0, P + 2 and P + 3 for rank 1, and so on; without one the system
chooses, and readers learn the ports through the PD bootstrap.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from sglang.srt.utils.network import NetworkAddress, get_local_ip_auto

# A name, an IPv4 address, or an IPv6 address with its zone.
_HOST = re.compile(r"[\w.:%*-]+", re.ASCII)
WILDCARDS = frozenset({"0.0.0.0", "::", "*", ""})


class EndpointError(ValueError):
    """A bad address or key. The text names it and says what is allowed."""


@dataclass(frozen=True)
class Endpoint:
    """Where a publisher's updates and syncs are, as ZeroMQ addresses."""

    updates: str
    syncs: str


def parse_tcp(text: str, *, what: str) -> tuple[str, int]:
    """Host and port of ``tcp://HOST:PORT``; port 0 is allowed.

    Raises:
        EndpointError: it is nothing of this form.
    """
    if text.startswith("tcp://"):
        host, colon, port = text[len("tcp://") :].rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        is_port = port.isascii() and port.isdigit() and len(port) <= 5
        if colon and _HOST.fullmatch(host) and is_port and int(port) <= 65535:
            return host, int(port)
    raise EndpointError(
        f"{what}: {text!r} is not an address; write tcp://HOST:PORT with a port from "
        "0 (any) to 65535"
    )


def tcp(host: str, port: int) -> str:
    """``tcp://HOST:PORT``, with brackets where IPv6 needs them."""
    return f"tcp://{NetworkAddress(host, port).to_host_port_str()}"


def bind_host(serving_host: str) -> str:
    """Where to bind without a setting: ``--host``, or the address others reach.

    A wildcard ``--host`` must not put the registry on every interface. ZeroMQ binds
    addresses, not names.

    Raises:
        ValueError: the name has no address.
    """
    if serving_host in WILDCARDS:
        return get_local_ip_auto()
    return NetworkAddress.resolve_host(serving_host)


def ports_of_rank(port: int, rank: int) -> tuple[int, int]:
    """The ports of a rank's two sockets; 0, 0 for any.

    Raises:
        EndpointError: past the last port.
    """
    if port == 0:
        return 0, 0
    first = port + 2 * rank
    if first + 1 > 65535:
        raise EndpointError(
            f"rank {rank} needs ports {first} and {first + 1}; choose a lower port than "
            f"{port}"
        )
    return first, first + 1


def peer_endpoint(text: str) -> Endpoint:
    """The endpoint of ``tcp://HOST:PORT``, whose syncs are one port further.

    Raises:
        EndpointError: not such an address, or port 0 or 65535.
    """
    host, port = parse_tcp(text, what="--cross-instance-cache-peers")
    if not 0 < port < 65535:
        raise EndpointError(
            f"--cross-instance-cache-peers: {text!r} needs the port that the prefill "
            "instance binds (setting bind), 1 to 65534"
        )
    return Endpoint(tcp(host, port), tcp(host, port + 1))


@dataclass(frozen=True)
class CurveKeys:
    """Keys of one side.

    Attributes:
        public, secret: its own pair.
        server: the publisher's public key, on the reader's side.
        clients_dir: folder of the public keys that may read, on the publisher's side;
            None lets everyone read who knows the publisher's key.
    """

    public: bytes
    secret: bytes
    server: Optional[bytes] = None
    clients_dir: Optional[str] = None


def load_keys(
    secret_file: Optional[str],
    server_file: Optional[str] = None,
    clients_dir: Optional[str] = None,
) -> Optional[CurveKeys]:
    """Read key files as ``zmq.auth.create_certificates`` writes them.

    Raises:
        EndpointError: a file that is missing or holds no such key.
    """
    if secret_file is None:
        return None
    public, secret = _load(secret_file, "curve_secret_key")
    if secret is None:
        raise EndpointError(
            f"curve_secret_key: {secret_file} holds no secret key; use the .key_secret "
            "file of zmq.auth.create_certificates"
        )
    server = None
    if server_file is not None:
        server, _ = _load(server_file, "curve_server_key")
    if clients_dir is not None and not Path(clients_dir).is_dir():
        raise EndpointError(f"curve_allowed_clients: {clients_dir} is not a folder")
    return CurveKeys(public, secret, server, clients_dir)


def _load(path: str, setting: str) -> tuple[bytes, Optional[bytes]]:
    import zmq.auth

    try:
        return zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise EndpointError(
            f"{setting}: cannot read a key from {path}: {error}"
        ) from None
