# SPDX-License-Identifier: Apache-2.0
"""Flags of the prefix registry, and their check before anything is loaded.

Free of torch and of the scheduler: ``ServerArgs`` is checked with it.
"""

from __future__ import annotations

import json
from typing import Any, Literal, Optional

import msgspec
from sglang.srt.disaggregation.prefix_registry.endpoints import (
    Endpoint,
    EndpointError,
    load_keys,
    parse_tcp,
    peer_endpoint,
)

FLAG = "--enable-cross-instance-cache-sync"
PEERS_FLAG = "--cross-instance-cache-peers"
CONFIG_FLAG = "--cross-instance-cache-config"

ARRIVAL = "arrival"
PREDICTED_READY = "predicted-ready"


class RegistrySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``--cross-instance-cache-config``.

    Attributes:
        model: name that both sides must agree on; default ``--served-model-name``.
        curve_secret_key: this side's ``.key_secret`` file; turns authentication on.

        bind: prefill: ``tcp://HOST:PORT`` of rank 0; rank r has PORT + 2r and
            PORT + 2r + 1. Default: ``--host`` (the advertised address where that is a
            wildcard), ports chosen by the system.
        curve_allowed_clients: prefill: folder of readers' ``.key`` files; default:
            every reader that knows this side's public key.
        queue_blocks: prefill: blocks that may wait for the publisher's thread.
        replay_batches, replay_bytes: prefill: updates kept for readers with a gap.
        send_updates: prefill: updates that may wait for one reader.
        heartbeat_s: prefill: seconds of silence at most; below 1, for after a second
            readers connect anew.

        curve_server_key: decode: the prefill instances' public ``.key`` file.
        max_blocks: decode: blocks known of one rank of an instance.
        stale_after_s: decode: silence after which an instance counts as having nothing
            (a second at most, as its sockets are made anew then) and the PD bootstrap
            is asked where it is now.
        receive_updates: decode: updates that may wait in a socket.
        order: decode: order in which requests get KV, ``arrival`` or
            ``predicted-ready``.
        max_wait_s: decode: a request is never put behind others for longer.
        transfer_tokens_per_s: decode: speed of the KV transfer, to weigh what must
            still be moved; null leaves that out of the order.
    """

    model: Optional[str] = None
    curve_secret_key: Optional[str] = None

    bind: Optional[str] = None
    curve_allowed_clients: Optional[str] = None
    queue_blocks: int = 1_000_000
    replay_batches: int = 10_000
    replay_bytes: int = 32 << 20
    send_updates: int = 1000
    heartbeat_s: float = 0.5

    curve_server_key: Optional[str] = None
    max_blocks: int = 4_000_000
    stale_after_s: float = 1.5
    receive_updates: int = 2000
    order: Literal["arrival", "predicted-ready"] = ARRIVAL
    max_wait_s: float = 5.0
    transfer_tokens_per_s: Optional[float] = None


# Settings that mean something on one side only.
PREFILL_ONLY = (
    "bind",
    "curve_allowed_clients",
    "queue_blocks",
    "replay_batches",
    "replay_bytes",
    "send_updates",
    "heartbeat_s",
)
DECODE_ONLY = (
    "curve_server_key",
    "max_blocks",
    "stale_after_s",
    "receive_updates",
    "order",
    "max_wait_s",
    "transfer_tokens_per_s",
)
# An update may hold 131 kB.
MOST_UPDATES = 1_000_000
_LEAST = {
    "queue_blocks": 1,
    "replay_batches": 1,
    "replay_bytes": 1,
    "send_updates": 1,
    "receive_updates": 1,
    "max_blocks": 1,
}


def parse_settings(text: Optional[str], mode: str) -> RegistrySettings:
    """Read ``--cross-instance-cache-config`` for an instance of ``mode``.

    Raises:
        ValueError: not such an object, a value out of range, or a setting of the
            other side. The text names the setting and what is allowed.
    """
    if text is None:
        return RegistrySettings()
    allowed = RegistrySettings.__struct_fields__
    try:
        raw = json.loads(text)
        if not isinstance(raw, dict):
            raise ValueError("it must be an object")
        settings = msgspec.convert(raw, RegistrySettings)
    except ValueError as error:
        raise ValueError(
            f"{CONFIG_FLAG}: {error}; settings are {', '.join(allowed)}"
        ) from None
    for name in DECODE_ONLY if mode == "prefill" else PREFILL_ONLY:
        if name in raw:
            other = "decode" if mode == "prefill" else "prefill"
            raise ValueError(
                f"{CONFIG_FLAG}: {name} is a setting of {other} instances; this one "
                f"is {mode}"
            )
    for name in ("send_updates", "receive_updates"):
        if getattr(settings, name) > MOST_UPDATES:
            raise ValueError(
                f"{CONFIG_FLAG}: {name} must be at most {MOST_UPDATES}, not "
                f"{getattr(settings, name)}"
            )
    for name, least in _LEAST.items():
        if getattr(settings, name) < least:
            raise ValueError(
                f"{CONFIG_FLAG}: {name} must be at least {least}, not "
                f"{getattr(settings, name)}"
            )
    if settings.max_blocks > 2**31:
        raise ValueError(
            f"{CONFIG_FLAG}: max_blocks must be at most {2**31}, not "
            f"{settings.max_blocks}"
        )
    if settings.heartbeat_s >= 1:
        raise ValueError(
            f"{CONFIG_FLAG}: heartbeat_s must be below 1, not {settings.heartbeat_s}: "
            "readers take a second of silence for a lost connection"
        )
    for name in ("heartbeat_s", "stale_after_s", "max_wait_s", "transfer_tokens_per_s"):
        value = getattr(settings, name)
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(
                f"{CONFIG_FLAG}: {name} must be a number above 0, not {value}"
            )
    return settings


def parse_peers(peers: Optional[list[str]]) -> dict[str, list[Endpoint]]:
    """``BOOTSTRAP_HOST:PORT=tcp://HOST:PORT[,tcp://...]``, an address a rank.

    Raises:
        ValueError: an entry of another form, or an instance twice.
    """
    found: dict[str, list[Endpoint]] = {}
    for text in peers or ():
        instance, equals, addresses = text.partition("=")
        host, colon, port = instance.rpartition(":")
        if not (equals and colon and host and port.isdigit()):
            raise ValueError(
                f"{PEERS_FLAG}: {text!r} is not of the form "
                "BOOTSTRAP_HOST:PORT=tcp://HOST:PORT[,tcp://HOST:PORT ...] (one "
                "address for each data-parallel rank)"
            )
        if instance in found:
            raise ValueError(f"{PEERS_FLAG}: {instance} is given twice")
        found[instance] = [peer_endpoint(each) for each in addresses.split(",")]
    return found


def check_prefix_registry(cfg: Any) -> None:
    """Start-up check. ``cfg`` is the resolved view of the server arguments.

    Raises:
        ValueError: a flag's value or a combination that cannot work. The text names
            the flag, the value and what is allowed.
    """
    if not cfg.enable_cross_instance_cache_sync:
        for flag, value in (
            (PEERS_FLAG, cfg.cross_instance_cache_peers),
            (CONFIG_FLAG, cfg.cross_instance_cache_config),
        ):
            if value is not None:
                raise ValueError(f"{flag} has no effect without {FLAG}")
        return
    mode = cfg.disaggregation_mode
    if mode not in ("prefill", "decode"):
        raise ValueError(
            f"{FLAG} needs --disaggregation-mode prefill or decode; this is {mode!r}, "
            "an instance that serves alone"
        )
    from sglang.srt.environ import envs

    for name, set_, why in (
        (
            "--enable-pd-role-switch",
            cfg.enable_pd_role_switch,
            "who publishes and who reads is fixed at start-up",
        ),
        (
            "--disable-radix-cache",
            mode == "prefill" and cfg.disable_radix_cache,
            "without a prefix cache there is nothing to publish",
        ),
        (
            "--elastic-ep-backend",
            cfg.elastic_ep_backend is not None,
            "it changes the namespace of every request from within the instance",
        ),
        (
            "--tokenizer-worker-num above 1",
            mode == "decode" and cfg.tokenizer_worker_num > 1,
            "each worker would keep a registry of its own",
        ),
        (
            "SGLANG_RUST_SERVER",
            bool(envs.SGLANG_RUST_SERVER.get()),
            "the registry lives in the Python tokenizer process, and its discovery in "
            "the Python bootstrap server",
        ),
        (
            PEERS_FLAG,
            mode == "prefill" and cfg.cross_instance_cache_peers is not None,
            "a prefill instance reads from nobody; give it to the decode instances",
        ),
    ):
        if set_:
            raise ValueError(f"{FLAG} cannot be combined with {name}: {why}")
    settings = parse_settings(cfg.cross_instance_cache_config, mode)
    try:
        peers = parse_peers(cfg.cross_instance_cache_peers)
        if settings.bind is not None:
            parse_tcp(settings.bind, what=f"{CONFIG_FLAG}: bind")
        keys = load_keys(
            settings.curve_secret_key,
            settings.curve_server_key,
            settings.curve_allowed_clients,
        )
    except EndpointError as error:
        raise ValueError(str(error)) from None
    if keys is None and (settings.curve_server_key or settings.curve_allowed_clients):
        raise ValueError(
            f"{CONFIG_FLAG}: curve_server_key and curve_allowed_clients need "
            "curve_secret_key, this side's own key"
        )
    if keys is not None and mode == "decode" and keys.server is None:
        raise ValueError(
            f"{CONFIG_FLAG}: curve_secret_key on a decode instance needs "
            "curve_server_key, the public key of the prefill instances"
        )
    for instance, endpoints in peers.items():
        if len(set(endpoints)) != len(endpoints):
            raise ValueError(f"{PEERS_FLAG}: {instance} has an address twice")
