# SPDX-License-Identifier: Apache-2.0
"""Upstream's KV events into NVIDIA Dynamo's standalone indexer over ZeroMQ, for comparison."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from typing import Any

import requests

from common.cli import BenchError

from .transport import free_ports

PATIENCE_S = 120.0
PAGE_SIZE = 16
PROMPT_BLOCKS = 512
_INDEXER = (
    "from dynamo.llm import run_kv_indexer; import sys; "
    "run_kv_indexer(['--port', sys.argv[1], '--threads', '2', '--block-size', '16', "
    "'--model-name', 'm'])"
)


def installed() -> bool:
    """Whether the indexer can be started here."""
    try:
        from dynamo.llm import run_kv_indexer  # noqa: F401
    except ImportError:
        return False
    return True


def measure(blocks: int, flush: int, seed: int) -> dict[str, Any]:
    """Blocks a second from upstream's publisher to the indexer's answers.

    Args:
        blocks: published, as prompts of 512 that share nothing.
        flush: blocks of one event batch.
    """
    from sglang.srt.disaggregation.kv_events import BlockStored, KVEventBatch, ZmqEventPublisher

    chance = random.Random(seed)
    prompts = [
        [chance.randrange(32_000) for _ in range(PROMPT_BLOCKS * PAGE_SIZE)]
        for _ in range(max(1, blocks // PROMPT_BLOCKS))
    ]
    batches, number = [], 0
    for prompt in prompts:
        parent = None
        for first in range(0, PROMPT_BLOCKS, flush):
            count = min(flush, PROMPT_BLOCKS - first)
            hashes = list(range(number + 1, number + 1 + count))
            number += count
            event = BlockStored(
                block_hashes=hashes,
                parent_block_hash=parent,
                token_ids=prompt[first * PAGE_SIZE : (first + count) * PAGE_SIZE],
                block_size=PAGE_SIZE,
                lora_id=None,
                medium="GPU",
            )
            parent = hashes[-1]
            batches.append(KVEventBatch(ts=0.0, events=[event]))
    port, events, replay = free_ports(3)
    url = f"http://127.0.0.1:{port}"
    publisher = ZmqEventPublisher(
        0,
        endpoint=f"tcp://127.0.0.1:{events}",
        replay_endpoint=f"tcp://127.0.0.1:{replay}",
        bind=True,
    )
    indexer = subprocess.Popen(
        [sys.executable, "-c", _INDEXER, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _register(url, events, replay)
        # Its socket subscribes in its own time; what comes before is lost.
        time.sleep(1.0)
        start = time.monotonic()
        for batch in batches:
            publisher.publish(batch)
        tokens = len(prompts[-1])
        while _matched(url, prompts[-1]) < tokens:
            if time.monotonic() - start > PATIENCE_S:
                raise BenchError("Dynamo's indexer did not get all blocks in time")
            time.sleep(0.002)
        took = time.monotonic() - start
    finally:
        indexer.kill()
        indexer.wait()
        publisher.shutdown()
    return {
        "arm": "dynamo indexer",
        "blocks": len(prompts) * PROMPT_BLOCKS,
        "flush": flush,
        "blocks_per_s": len(prompts) * PROMPT_BLOCKS / took,
    }


def _register(url: str, events: int, replay: int) -> None:
    body = {
        "instance_id": 1,
        "endpoint": f"tcp://127.0.0.1:{events}",
        "replay_endpoint": f"tcp://127.0.0.1:{replay}",
        "model_name": "m",
        "block_size": PAGE_SIZE,
        "dp_rank": 0,
    }
    deadline = time.monotonic() + 30
    while True:
        try:
            requests.post(f"{url}/register", json=body, timeout=5).raise_for_status()
            return
        except requests.RequestException as error:
            if time.monotonic() > deadline:
                raise BenchError(f"Dynamo's indexer does not answer: {error}") from None
            time.sleep(0.1)


def _matched(url: str, prompt: list[int]) -> int:
    body = {"model_name": "m", "token_ids": prompt}
    answer = requests.post(f"{url}/query", json=body, timeout=30).json()
    return max((int(rank["0"]) for rank in answer["scores"].values()), default=0)
