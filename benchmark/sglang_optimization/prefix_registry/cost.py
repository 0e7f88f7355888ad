# SPDX-License-Identifier: Apache-2.0
"""What publishing costs: the same requests on a real tree with and without it."""

from __future__ import annotations

import hashlib
import random
import time
from array import array
from typing import Any

import torch

PROMPT_TOKENS = 2048
PAGE_SIZE = 16
STOPPED = "registry, a reader stopped"
MODES = ("off", "upstream events", "registry", STOPPED)
# Published before the measurement, so that all buffers up to the stopped reader are full: 8 MB,
# and a short queue for each reader.
FILL_BLOCKS = 128_000
FILL_A_FLUSH = 2048


def measure(core: str, mode: str, requests: int, seed: int) -> dict[str, Any]:
    """Thread and process time of ``requests`` prompts, half of each one shared.

    Thread time is the scheduler's; process time adds the publisher's thread, which
    takes turns with it under the interpreter lock.
    """
    from sglang.srt.disaggregation.prefix_registry.history import History, Identity
    from sglang.srt.disaggregation.prefix_registry.publisher import Publisher
    from sglang.srt.disaggregation.prefix_registry.tap import TreeTap
    from sglang.srt.disaggregation.prefix_registry.translate import Translator
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    from .publishing import SEND_UPDATES, StoppedReader
    from .tree import make_tree

    capacity = 64 * PROMPT_TOKENS
    tree = make_tree(core, capacity=capacity, page_size=PAGE_SIZE, events=mode != "off")
    publisher = tap = reader = None
    if mode in ("registry", STOPPED):
        publisher = Publisher(
            History(Identity("m", "float32/auto", PAGE_SIZE, "token", "bench", 0)),
            Translator(PAGE_SIZE, bigram=False),
            host="127.0.0.1",
            send_updates=SEND_UPDATES if mode == STOPPED else 1000,
        )
        tap = TreeTap(PAGE_SIZE, exclusive=True)
        tree.tree_core.kv_events.registry_tap = tap
    if mode == STOPPED:
        reader = StoppedReader(publisher.endpoint.updates)
        fill(publisher)
    chance = random.Random(seed)
    shared = [[chance.randrange(32_000) for _ in range(PROMPT_TOKENS // 2)] for _ in range(8)]
    prompts = [
        array(
            "q",
            [
                *chance.choice(shared),
                *(chance.randrange(32_000) for _ in range(PROMPT_TOKENS // 2)),
            ],
        )
        for _ in range(requests)
    ]
    allocator = tree.token_to_kv_pool_allocator
    process, thread, wall = time.process_time(), time.thread_time(), time.perf_counter()
    for prompt in prompts:
        key = RadixKey(prompt)
        match = tree.match_prefix(MatchPrefixParams(key=key))
        lock = tree.lock(match.last_device_node)
        missing = PROMPT_TOKENS - match.device_prefix_len
        if missing > allocator.available_size():
            allocator.evict_to_free_tokens(tree, missing)
        hit = match.device_prefix_len
        values = [tree.path_device_indices(match.last_device_node)[:hit], allocator.alloc(missing)]
        tree.insert(InsertParams(key=key, value=torch.cat(values), prev_prefix_len=hit))
        tree.unlock(lock)
        if mode != "off":
            tree.take_events()
        if publisher is not None:
            publisher.offer(*tap.drain())
    thread, wall = time.thread_time() - thread, time.perf_counter() - wall
    while publisher is not None and publisher.queued_blocks:
        time.sleep(0.001)
    process = time.process_time() - process
    missed = None
    if publisher is not None:
        assert publisher.failure is None and publisher.dropped_blocks == 0
        if reader is not None:
            missed, _ = reader.missed()
            reader.close()
            assert missed, "the stopped reader's buffers never filled"
        publisher.close()
    return {
        "core": core,
        "mode": mode,
        "thread_us_a_request": 1e6 * thread / requests,
        "process_us_a_request": 1e6 * process / requests,
        "wall_us_a_request": 1e6 * wall / requests,
        "missed_updates": missed,
    }


def fill(publisher: Any) -> None:
    """Publish more than the buffers of a reader that does not read can take."""
    time.sleep(0.5)  # it subscribes in its own time
    pages = [hashlib.sha256(b"%d" % i).hexdigest() for i in range(FILL_A_FLUSH)]
    for _ in range(FILL_BLOCKS // FILL_A_FLUSH):
        for kind in ("node_stored", "node_removed"):
            publisher.offer([(kind, 1, pages)], len(pages))
        while publisher.queued_blocks:
            time.sleep(0.001)
