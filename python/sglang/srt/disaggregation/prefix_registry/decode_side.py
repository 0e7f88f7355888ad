# SPDX-License-Identifier: Apache-2.0
"""The registry in a decode instance's tokenizer process.

One process reads and predicts, and the prediction travels with the request, so that
all ranks of the scheduler see the same.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional

from sglang.srt.disaggregation.prefix_registry import digests, discovery
from sglang.srt.disaggregation.prefix_registry.endpoints import Endpoint, load_keys
from sglang.srt.disaggregation.prefix_registry.metrics import (
    READER_COUNTERS,
    READER_GAUGES,
    REGISTRY_COUNTERS,
    MetricFamily,
)
from sglang.srt.disaggregation.prefix_registry.ready_model import ReadyModel
from sglang.srt.disaggregation.prefix_registry.registry import Prompt
from sglang.srt.disaggregation.prefix_registry.settings import (
    PREDICTED_READY,
    RegistrySettings,
    parse_peers,
    parse_settings,
)
from sglang.srt.disaggregation.prefix_registry.stream import Expected, Stream
from sglang.srt.disaggregation.prefix_registry.stream_report import numbers, state
from sglang.srt.disaggregation.prefix_registry.subscriber import Subscriber
from sglang.srt.utils.network import NetworkAddress

if TYPE_CHECKING:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

logger = logging.getLogger(__name__)

# Upstream's name for requests without a prefill instance, as its own warm-up sends
# (disaggregation/utils.py, which imports torch).
FAKE_BOOTSTRAP_HOST = "2.2.2.2"
# The bootstrap address comes with requests: bound what strangers can make us ask.
MAX_INSTANCES = 256
# A silent instance is asked where it is now this often, one that never answered less
# and less often, and forgotten after so many seconds of silence.
ASK_EVERY_S = 1.0
ASK_AT_LEAST_EVERY_S = 30.0
FORGET_AFTER_S = 600.0


@dataclass
class _Instance:
    name: str
    explicit: bool
    streams: dict[int, Stream] = field(default_factory=dict)
    endpoints: dict[int, Endpoint] = field(default_factory=dict)
    used_at: float = 0.0
    ask_at: float = 0.0
    wait_s: float = ASK_EVERY_S
    asking: bool = False
    # As many as it has; those that started first announce themselves first.
    ranks: int = 1

    def needs_asking(self) -> bool:
        return not self.explicit and (
            len(self.streams) < self.ranks
            or any(s.is_stale() for s in self.streams.values())
        )


class DecodeRegistry:
    """Registries of all prefill instances that requests name.

    Args:
        expected: what they must serve.
        settings, peers: from the flags; ``peers`` gives endpoints by bootstrap address.
        labels: metric labels; None exports nothing.
        ask: finds the endpoints of an instance (``discovery.ask``).
        is_known: whether a request of this id is under way.
    """

    def __init__(
        self,
        expected: Expected,
        settings: RegistrySettings,
        *,
        peers: Mapping[str, list[Endpoint]],
        labels: Optional[Mapping[str, str]] = None,
        ask: Callable[[str], Optional[discovery.Found]] = discovery.ask,
        maintain_every_s: float = 0.25,
        is_known: Callable[[str], bool] = lambda rid: True,
    ):
        self._expected = expected
        self._settings = settings
        self._ask = ask
        self._every_s = maintain_every_s
        self._lock = threading.Lock()
        self._instances: OrderedDict[str, _Instance] = OrderedDict()
        self._estimates = 0
        self._estimated_tokens = 0
        self._metrics = MetricFamily(
            labels,
            counters=READER_COUNTERS,
            gauges=READER_GAUGES,
            more_labels=("instance", "rank"),
            prefix="reader_",
        )
        self._totals = MetricFamily(labels, counters=REGISTRY_COUNTERS, gauges={})
        self.ready_model = (
            ReadyModel(max_wait_s=settings.max_wait_s, is_known=is_known)
            if settings.order == PREDICTED_READY
            else None
        )
        self._subscriber = Subscriber(
            keys=load_keys(settings.curve_secret_key, settings.curve_server_key),
            receive_updates=settings.receive_updates,
        )
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="prefix-registry-ask")
        for name, endpoints in peers.items():
            instance = _Instance(name, explicit=True)
            self._instances[name] = instance
            self._follow(instance, dict(enumerate(endpoints)))
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._maintain, name="prefix-registry-maintain", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop all threads."""
        self._stop.set()
        self._thread.join(timeout=5.0)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._subscriber.close()

    # ---- asking

    def estimate(
        self, prompt: Prompt, instance: str, rank: Optional[int] = None
    ) -> int:
        """Tokens of ``prompt`` that an instance has cached; learns of a new instance.

        Args:
            instance: its bootstrap address, HOST:PORT.
            rank: its data-parallel rank; None takes the longest of all.
        """
        streams = self._streams_of(instance)
        if rank is not None:
            streams = {r: s for r, s in streams.items() if r == rank}
        tokens = max((s.estimate(prompt) for s in streams.values()), default=0)
        self._estimates += 1
        self._estimated_tokens += tokens
        return tokens

    def estimate_all(self, prompt: Prompt) -> list[dict[str, Any]]:
        """For each known instance and rank the prefix it has, and how sure that is."""
        with self._lock:
            # An instance without the flag, or not found yet, has nothing to say.
            instances = [
                (each.name, dict(each.streams))
                for each in self._instances.values()
                if each.streams
            ]
        out = []
        for name, streams in instances:
            ranks = [
                {
                    "rank": rank,
                    "prefix_tokens": stream.estimate(prompt),
                    **state(stream),
                }
                for rank, stream in sorted(streams.items())
            ]
            tokens = max((each["prefix_tokens"] for each in ranks), default=0)
            out.append({"instance": name, "prefix_tokens": tokens, "ranks": ranks})
            self._estimates += 1
            self._estimated_tokens += tokens
        return out

    def on_request(self, request: Any) -> None:
        """Write the prediction into a tokenized request (``predicted_ready_s``).

        Never raises: without a prediction a request only loses its place in the order.
        """
        if (
            request.bootstrap_host in (None, FAKE_BOOTSTRAP_HOST)
            or not request.input_ids
        ):
            return
        try:
            self._predict(request)
        except Exception:
            logger.exception("Prefix registry: no prediction for %s", request.rid)

    def _predict(self, request: Any) -> None:
        port = request.bootstrap_port
        if port is None:
            from sglang.srt.runtime_context import get_disagg

            port = get_disagg().disaggregation_bootstrap_port
        instance = NetworkAddress(request.bootstrap_host, port).to_host_port_str()
        self._streams_of(instance)  # learns of it
        if self.ready_model is None:
            return
        rank = request.disagg_prefill_dp_rank
        ranks = self._ranks_of(instance)
        if rank is None and request.bootstrap_room is not None and ranks > 1:
            # Upstream's default: the room says which rank serves it.
            rank = request.bootstrap_room % ranks
        prompt = Prompt(
            request.input_ids,
            extra_key=request.extra_key,
            cache_salt=request.cache_salt,
            lora_name=request.lora_name,
        )
        cached = self.estimate(prompt, instance, rank)
        # The last token is always computed.
        missing = max(1, len(request.input_ids) - cached)
        request.predicted_ready_s = self.ready_model.predict(
            request.rid, instance if rank is None else f"{instance}/{rank}", missing
        )

    def on_first_token(
        self, rid: str, at: float, finish_reason: Optional[Mapping[str, Any]]
    ) -> None:
        """A request's first output arrived.

        Args:
            at: when its first token was there (``time.perf_counter``).
            finish_reason: upstream's, if it has ended with this output.
        """
        if self.ready_model is None:
            return
        if finish_reason is not None and finish_reason.get("type") == "abort":
            self.ready_model.forget(rid)
        else:
            self.ready_model.ready(rid, at)

    def on_end(self, rid: str) -> None:
        """A request ended, perhaps without a token."""
        if self.ready_model is not None:
            self.ready_model.forget(rid)

    def describe(self) -> list[dict[str, Any]]:
        """State of every known instance."""
        with self._lock:
            return [
                {
                    "instance": each.name,
                    "explicit": each.explicit,
                    "ranks": [
                        {
                            "rank": rank,
                            "address": each.endpoints[rank].updates,
                            **state(stream),
                            **numbers(stream),
                        }
                        for rank, stream in sorted(each.streams.items())
                    ],
                }
                for each in self._instances.values()
            ]

    # ---- knowing

    def _streams_of(self, name: str) -> dict[int, Stream]:
        with self._lock:
            instance = self._instances.get(name)
            if instance is None:
                if len(self._instances) >= MAX_INSTANCES and not self._make_room():
                    return {}
                instance = self._instances[name] = _Instance(name, explicit=False)
            instance.used_at = time.monotonic()
            return dict(instance.streams)

    def _ranks_of(self, name: str) -> int:
        with self._lock:
            instance = self._instances.get(name)
            return 1 if instance is None else max(instance.ranks, len(instance.streams))

    def _make_room(self) -> bool:
        """Forget the least lately used instance that says nothing."""
        idle = [i for i in self._instances.values() if i.needs_asking()]
        if not idle:
            return False
        self._forget(min(idle, key=lambda each: each.used_at))
        return True

    def _forget(self, instance: _Instance) -> None:
        for stream in instance.streams.values():
            self._subscriber.drop(stream)
        self._instances.pop(instance.name, None)

    def _follow(
        self,
        instance: _Instance,
        endpoints: dict[int, Endpoint],
        ranks: Optional[int] = None,
    ) -> None:
        for rank, endpoint in endpoints.items():
            if instance.endpoints.get(rank) == endpoint:
                continue
            stream = instance.streams.get(rank)
            if stream is None:
                stream = Stream(
                    self._expected,
                    rank=rank,
                    max_blocks=self._settings.max_blocks,
                    stale_after_s=self._settings.stale_after_s,
                )
                instance.streams[rank] = stream
            instance.endpoints[rank] = endpoint
            self._subscriber.follow(stream, endpoint)
        instance.ranks = len(endpoints) if ranks is None else ranks
        for rank in set(instance.streams) - set(endpoints):
            if rank < instance.ranks and not instance.streams[rank].is_stale():
                continue  # it has not announced itself again yet
            self._subscriber.drop(instance.streams.pop(rank))
            del instance.endpoints[rank]

    def _maintain(self) -> None:
        exported_at = 0.0
        while not self._stop.wait(self._every_s):
            try:
                now = time.monotonic()
                self._ask_where_needed(now)
                if now - exported_at >= 1.0:
                    exported_at = now
                    self._export()
            except Exception:
                logger.exception("Prefix registry: maintenance failed; going on")

    def _ask_where_needed(self, now: float) -> None:
        with self._lock:
            for instance in list(self._instances.values()):
                if not instance.needs_asking():
                    instance.wait_s = ASK_EVERY_S
                    continue
                if instance.explicit or instance.asking or now < instance.ask_at:
                    continue
                if now - max(instance.used_at, _heard_at(instance)) > FORGET_AFTER_S:
                    self._forget(instance)
                    continue
                instance.asking = True
                instance.ask_at = now + instance.wait_s
                if not instance.streams:
                    instance.wait_s = min(2 * instance.wait_s, ASK_AT_LEAST_EVERY_S)
                self._pool.submit(self._find, instance)

    def _find(self, instance: _Instance) -> None:
        try:
            found = self._ask(instance.name)
        finally:
            instance.asking = False
        # None: not reachable; empty: restarting. Both keep what is known: it is stale.
        if found is not None and found.endpoints:
            with self._lock:
                if self._instances.get(instance.name) is instance:
                    self._follow(instance, found.endpoints, found.ranks)

    def _export(self) -> None:
        self._totals.set(
            {"estimates": self._estimates, "estimated_tokens": self._estimated_tokens}
        )
        with self._lock:
            streams = [
                (each.name, rank, stream)
                for each in self._instances.values()
                for rank, stream in each.streams.items()
            ]
        for name, rank, stream in streams:
            self._metrics.set(numbers(stream), instance=name, rank=str(rank))


def _heard_at(instance: _Instance) -> float:
    return max((s.heard_at or 0.0 for s in instance.streams.values()), default=0.0)


def create_decode_registry(manager: TokenizerManager) -> Optional[DecodeRegistry]:
    """The registry that the flags ask for; None without them."""
    from sglang.srt.runtime_context import get_disagg, get_serving

    disagg = get_disagg()
    if (
        not disagg.enable_cross_instance_cache_sync
        or disagg.disaggregation_mode != "decode"
    ):
        return None
    from sglang.srt.arg_groups.overrides import kv_event_block_size_of, resolving_view
    from sglang.srt.disaggregation.prefix_registry.prefill_side import kv_dtype

    digests.load()
    settings = parse_settings(disagg.cross_instance_cache_config, "decode")
    labels = manager.metrics_collector.labels if manager.enable_metrics else None
    return DecodeRegistry(
        Expected(
            model=settings.model or get_serving().served_model_name,
            dtype=kv_dtype(manager.model_config.dtype),
            page_size=kv_event_block_size_of(resolving_view(manager.server_args)),
        ),
        settings,
        peers=parse_peers(disagg.cross_instance_cache_peers),
        labels=labels,
        is_known=lambda rid: rid in manager.rid_to_state,
    )
