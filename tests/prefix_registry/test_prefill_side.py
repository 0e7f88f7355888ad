# SPDX-License-Identifier: Apache-2.0
"""What a prefill scheduler calls, on a real tree of both cores and a real publisher."""

from __future__ import annotations

import time

import pytest
from identities import expected, identity
from registry_world import CORES, PublishedTree
from sglang.srt.disaggregation.prefix_registry.history import History
from sglang.srt.disaggregation.prefix_registry.metrics import (
    PUBLISHER_COUNTERS,
    PUBLISHER_GAUGES,
    MetricFamily,
)
from sglang.srt.disaggregation.prefix_registry.prefill_side import PrefillRegistry
from sglang.srt.disaggregation.prefix_registry.publisher import Publisher
from sglang.srt.disaggregation.prefix_registry.stream import Stream
from sglang.srt.disaggregation.prefix_registry.subscriber import Subscriber
from sglang.srt.managers.scheduler_components.kv_events_publisher import SchedulerKvEventsPublisher

PROMPT = list(range(40))
ID = "0123456789abcdef0123456789abcdef"


def wait_for(condition, seconds=5.0):
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds
        time.sleep(0.01)


@pytest.fixture(params=CORES)
def side(request):
    """A tree, the scheduler's publisher component with the registry, and a reader."""
    world = PublishedTree(request.param)
    publisher = Publisher(History(identity()), world.translator, host="127.0.0.1", heartbeat_s=0.1)
    metrics = MetricFamily(None, counters=PUBLISHER_COUNTERS, gauges=PUBLISHER_GAUGES)
    registry = PrefillRegistry(publisher, world.tap, adapters={"old": "f" * 32}, metrics=metrics)
    component = SchedulerKvEventsPublisher(
        kv_events_config=None,
        tree_cache=world.tree,
        send_metrics_from_scheduler=None,
        max_running_requests=1,
        max_total_num_tokens=1,
        get_stats=lambda: None,
    )
    component.prefix_registry = registry
    subscriber = Subscriber()
    world.stream = Stream(expected())
    subscriber.follow(world.stream, publisher.endpoint)
    world.component, world.registry = component, registry
    yield world
    subscriber.close()
    publisher.close()


def known(side, **namespace):
    return side.stream.estimate(PROMPT, **namespace)


def test_the_schedulers_flush_publishes(side):
    side.serve(PROMPT)
    side.component.publish_kv_events()
    wait_for(lambda: known(side) == 40)
    side.evict(64)
    side.component.publish_kv_events()
    wait_for(lambda: known(side) == 0)


def test_adapters_are_found_by_name_under_their_latest_id(side):
    wait_for(lambda: side.stream.registry.adapters == {"old": "f" * 32})
    side.registry.note_adapter(ID, "sql")
    side.registry.note_adapter(None, None)
    side.serve(PROMPT, ID)
    side.component.publish_kv_events()
    wait_for(lambda: known(side, lora_name="sql") == 40)
    assert known(side) == 0
    side.registry.note_adapter(ID[::-1], "sql")  # loaded anew: nothing of it is cached yet
    wait_for(lambda: known(side, lora_name="sql") == 0)
    assert known(side, lora_name="old") == 0
    side.registry.note_adapter(ID, "sql")
    wait_for(lambda: known(side, lora_name="sql") == 40)
    side.registry.forget_adapter(ID)  # unloaded
    wait_for(lambda: known(side, lora_name="sql") == 0)
    assert side.stream.registry.adapters == {"old": "f" * 32}


def test_weight_updates_begin_an_epoch_with_what_is_still_cached(side):
    side.serve(PROMPT)
    side.component.publish_kv_events()
    wait_for(lambda: known(side) == 40)
    epoch = side.stream.epoch
    side.registry.on_weights_updated()
    wait_for(lambda: side.stream.epoch > epoch and known(side) == 40)
    side.flush()
    side.component.publish_kv_events()
    wait_for(lambda: known(side) == 0)
