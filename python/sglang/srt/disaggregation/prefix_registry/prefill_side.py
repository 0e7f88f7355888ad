# SPDX-License-Identifier: Apache-2.0
"""The registry in a prefill instance's scheduler: builds the publisher and feeds it."""

from __future__ import annotations

import atexit
import logging
import time
from typing import TYPE_CHECKING, Any, Optional

from sglang.srt.disaggregation.prefix_registry import digests
from sglang.srt.disaggregation.prefix_registry.discovery import (
    RankEndpoint,
    advertised,
    announce,
)
from sglang.srt.disaggregation.prefix_registry.endpoints import (
    WILDCARDS,
    bind_host,
    load_keys,
    parse_tcp,
    ports_of_rank,
)
from sglang.srt.disaggregation.prefix_registry.history import History, Identity
from sglang.srt.disaggregation.prefix_registry.metrics import (
    PUBLISHER_COUNTERS,
    PUBLISHER_GAUGES,
    MetricFamily,
)
from sglang.srt.disaggregation.prefix_registry.publisher import Publisher
from sglang.srt.disaggregation.prefix_registry.settings import (
    FLAG,
    RegistrySettings,
    parse_settings,
)
from sglang.srt.disaggregation.prefix_registry.tap import TreeTap
from sglang.srt.disaggregation.prefix_registry.translate import Translator
from sglang.srt.runtime_context import (
    get_disagg,
    get_lora,
    get_model,
    get_parallel,
    get_serving,
)
from sglang.srt.utils.network import NetworkAddress

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler import Scheduler

logger = logging.getLogger(__name__)

_METRICS_EVERY_S = 1.0


def publishes() -> bool:
    """Whether this scheduler publishes; its tree must then record events."""
    disagg, parallel = get_disagg(), get_parallel()
    return (
        disagg.enable_cross_instance_cache_sync
        and disagg.disaggregation_mode == "prefill"
        # One for each KV cache, as for upstream's KV events.
        and parallel.pp_rank == 0
        and parallel.attn_tp_rank == 0
        and parallel.attn_cp_rank == 0
    )


def kv_dtype(model_dtype: Any) -> str:
    """Name of the KV's number format, the same on both sides."""
    return f"{str(model_dtype).removeprefix('torch.')}/{get_model().kv_cache_dtype}"


class PrefillRegistry:
    """What the scheduler calls. None of it waits.

    Args:
        publisher, tap: of this rank.
        adapters: LoRA adapter ids by name, known at start-up.
        metrics: where the publisher's numbers go.
    """

    def __init__(
        self,
        publisher: Publisher,
        tap: TreeTap,
        *,
        adapters: dict[str, str],
        metrics: MetricFamily,
    ):
        self.publisher = publisher
        self.tap = tap
        self._adapters = adapters
        self._metrics = metrics
        self._metrics_at = 0.0
        if adapters:
            publisher.note_adapters(adapters)

    def flush(self) -> None:
        """Hand what changed since the last call to the publisher's thread."""
        self.publisher.offer(*self.tap.drain())
        now = time.monotonic()
        if now - self._metrics_at >= _METRICS_EVERY_S:
            self._metrics_at = now
            self._export()

    def note_adapter(self, lora_id: Optional[str], lora_name: Optional[str]) -> None:
        """This adapter was loaded, or a request uses it."""
        if lora_id is None or lora_name is None:
            return
        if self._adapters.get(lora_name) != lora_id:
            self._adapters[lora_name] = lora_id
            self.publisher.note_adapters(self._adapters)

    def forget_adapter(self, lora_id: Optional[str]) -> None:
        """This adapter was unloaded: its pages stay cached, but no request finds them."""
        kept = {name: each for name, each in self._adapters.items() if each != lora_id}
        if len(kept) < len(self._adapters):
            self._adapters = kept
            self.publisher.note_adapters(kept)

    def on_weights_updated(self) -> None:
        """The weights changed: what readers know is of other weights.

        Call it after a flush, or what changed before them is told after them.
        """
        self.publisher.new_epoch()

    def _export(self) -> None:
        publisher = self.publisher
        self._metrics.set(
            {
                "updates": publisher.updates_sent,
                "answers": publisher.answers_sent,
                "bad_requests": publisher.bad_requests,
                "dropped_blocks": publisher.dropped_blocks,
                "resident_blocks": publisher.history.num_blocks,
                "queued_blocks": publisher.queued_blocks,
                "lost_blocks": publisher.lost_blocks,
                "epoch": publisher.history.epoch / 1e9,
                "up": float(publisher.failure is None),
            }
        )


def attach_publisher(scheduler: Scheduler) -> None:
    """Give ``scheduler.kv_events_publisher`` its registry where the flag asks for it.

    Raises:
        ValueError: the cache cannot be published, or the address not bound.
    """
    if not publishes():
        return
    _check_supported(scheduler)
    digests.load()
    settings = parse_settings(get_disagg().cross_instance_cache_config, "prefill")
    parallel, serving = get_parallel(), get_serving()
    rank = parallel.attn_dp_rank if parallel.attn_dp_size > 1 else parallel.dp_rank or 0
    tree = scheduler.tree_cache
    bigram = bool(tree.tree_core.is_eagle)
    identity = Identity(
        model=settings.model or serving.served_model_name,
        dtype=kv_dtype(scheduler.model_config.dtype),
        page_size=tree.page_size,
        unit="bigram" if bigram else "token",
        instance=f"{serving.host}:{get_disagg().disaggregation_bootstrap_port}",
        rank=rank,
    )
    publisher = _start(settings, identity, serving.host, bigram=bigram)
    tap = TreeTap(
        tree.page_size,
        exclusive=not scheduler.kv_events_publisher.enable_kv_cache_events,
    )
    tree.tree_core.kv_events.registry_tap = tap
    collector = scheduler.metrics_collector
    adapters = {ref.lora_name: ref.lora_id for ref in get_lora().lora_paths or ()}
    scheduler.kv_events_publisher.prefix_registry = PrefillRegistry(
        publisher,
        tap,
        adapters=adapters,
        metrics=MetricFamily(
            collector.labels if collector is not None else None,
            counters=PUBLISHER_COUNTERS,
            gauges=PUBLISHER_GAUGES,
            prefix="publisher_",
        ),
    )
    atexit.register(publisher.close)
    reachable = advertised(publisher.endpoint, bind_host("0.0.0.0"))
    host = serving.host
    if parallel.dist_init_addr:
        # As for upstream's registration: the bootstrap server runs on the first node.
        host = NetworkAddress.parse(parallel.dist_init_addr).resolved().host
    announce(
        host,
        get_disagg().disaggregation_bootstrap_port,
        RankEndpoint(
            rank,
            reachable.updates,
            reachable.syncs,
            of=max(parallel.attn_dp_size, parallel.dp_size),
        ),
    )
    logger.info(
        "Prefix registry: publishing at %s (syncs %s)%s",
        reachable.updates,
        reachable.syncs,
        "" if settings.curve_secret_key else ", without authentication",
    )


def _start(
    settings: RegistrySettings, identity: Identity, host: str, *, bigram: bool
) -> Publisher:
    port = 0
    if settings.bind is not None:
        host, port = parse_tcp(settings.bind, what="bind")
        if host not in WILDCARDS:
            host = bind_host(host)
    else:
        host = bind_host(host)
    return Publisher(
        History(
            identity,
            replay_batches=settings.replay_batches,
            replay_bytes=settings.replay_bytes,
        ),
        Translator(identity.page_size, bigram=bigram),
        host=host,
        ports=ports_of_rank(port, identity.rank),
        keys=load_keys(
            settings.curve_secret_key, clients_dir=settings.curve_allowed_clients
        ),
        queue_blocks=settings.queue_blocks,
        send_updates=settings.send_updates,
        heartbeat_s=settings.heartbeat_s,
    )


def _check_supported(scheduler: Scheduler) -> None:
    from sglang.srt.mem_cache.full_attention_only import require_full_attention

    require_full_attention(
        scheduler.tree_cache,
        FLAG,
        because="without whose state a cached page is no usable prefix",
    )
