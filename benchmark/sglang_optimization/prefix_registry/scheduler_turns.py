# SPDX-License-Identifier: Apache-2.0
"""One prefill scheduler in this process that publishes in every other turn.

    python scheduler_turns.py MODEL RESULT.json ROUNDS PROMPTS SEED FILL [server flags]

The real loop, model, tree and publisher; requests are handed in where they are received,
and their KV goes to upstream's fake transfer. Two processes of one program differ by
percents, which is more than publishing may cost; here both sides are one process. The
cache has a second tree core that records nothing; turns begin with an empty cache, so
that the two can be exchanged. FILL (0 or 1): publish first what fills the buffers up to a
reader that does not read. Readers find the publisher by RESULT.json.endpoint, once it is bound.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from prefix_registry.cost import fill as fill_buffers
from prefix_registry.pair import PROMPT_TOKENS, random_tokens
from prefix_registry.scheduler_cost import ARMS
from support.scheduler_in_process import SchedulerInProcess

PREFIXES = 4


class TwoCores:
    """Gives every cache that is built a second tree core, and exchanges them."""

    def __init__(self) -> None:
        from sglang.srt.mem_cache import unified_radix_cache as module

        create = module.create_tree_core
        self._cores: dict[str, Any] = {}

        def both(*, name: str, params: Any, components: Any) -> Any:
            assert params.enable_kv_cache_events, "the registry's tree records events"
            quiet = replace(params, enable_kv_cache_events=False)
            self._cores["silent"] = create(name=name, params=quiet, components=components)
            self._cores["publishing"] = create(name=name, params=params, components=components)
            return self._cores["publishing"]

        module.create_tree_core = both

    def use(self, arm: str, scheduler: Any, registry: Any) -> None:
        """Exchanges the core and the registry of a scheduler whose cache is empty."""
        cache, core = scheduler.tree_cache, self._cores[arm]
        cache.tree_core = cache.session_refs.tree_core = core
        for component in cache.components.values():
            component.tree_core = core
        scheduler.kv_events_publisher.prefix_registry = registry if arm == "publishing" else None


def turns(
    rounds: int,
    prompts: int,
    seed: int,
    fill_first: int,
    cores: TwoCores,
    rows: list[dict[str, Any]],
) -> Any:
    """The script of the scheduler's input; appends a row a turn.

    The cache is filled before the clock runs: each timed prompt evicts as much as it
    stores, and finds its first half cached.
    """
    chance = random.Random(seed)
    half = PROMPT_TOKENS // 2
    prefixes = [random_tokens(chance, half) for _ in range(PREFIXES)]

    def drawn() -> list[list[int]]:
        return [[*prefixes[i % PREFIXES], *random_tokens(chance, half)] for i in range(prompts)]

    def inputs(run: SchedulerInProcess) -> Iterator[list[Any]]:
        from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST

        scheduler = run.scheduler
        registry = scheduler.kv_events_publisher.prefix_registry
        asked = 0
        add = scheduler._add_request_to_queue

        def add_kept(req: Any, *more: Any, **named: Any) -> Any:
            # Upstream keeps nothing of what goes to the fake transfer, its health checks.
            req.skip_radix_cache_insert = False
            return add(req, *more, **named)

        scheduler._add_request_to_queue = add_kept
        if fill_first:
            fill_buffers(registry.publisher)
        gc.freeze()  # a flush collects, which takes as long as many a turn

        def ask(texts: list[list[int]]) -> list[Any]:
            nonlocal asked
            made = []
            for text in texts:
                asked += 1
                room = {"bootstrap_host": FAKE_BOOTSTRAP_HOST, "bootstrap_room": asked}
                made.append(run.generate(f"request-{asked}", text, 1, **room))
            return made

        def answered(requests: list[Any]) -> Iterator[list[Any]]:
            yield requests
            yield from run.until(lambda: all(each.rid in run.ended for each in requests))
            reasons = {run.ended[each.rid] for each in requests}
            assert reasons == {"length"}, reasons
            yield from run.until(scheduler.is_fully_idle)

        for number in range(rounds):
            fill, timed = drawn(), drawn()
            for arm in ARMS if number % 2 else ARMS[::-1]:
                assert scheduler.flush_cache(), "the cache could not be emptied"
                scheduler.kv_events_publisher.publish_kv_events()
                cores.use(arm, scheduler, registry)
                yield from answered(ask(fill))
                requests = ask(timed)
                sent = registry.publisher.updates_sent
                cpu, thread, wall = time.process_time(), time.thread_time(), time.perf_counter()
                yield from answered(requests)
                wall = time.perf_counter() - wall
                thread = time.thread_time() - thread
                while registry.publisher.queued_blocks:  # its thread's share of the time
                    time.sleep(0.0005)
                cached = sum(run.cached[each.rid] for each in requests)
                rows.append(
                    {
                        "arm": arm,
                        "seconds": wall,
                        "scheduler_cpu_s": thread,
                        "cpu_s": time.process_time() - cpu,
                        "computed": prompts * PROMPT_TOKENS - cached,
                        "updates": registry.publisher.updates_sent - sent,
                    }
                )
        scheduler.kv_events_publisher.prefix_registry = registry
        failure = registry.publisher.failure
        assert failure is None, failure

    return inputs


def main(model: str, path: str, numbers: list[int], flags: list[str]) -> None:
    """Runs the turns and writes their rows; ends the process."""
    from sglang.srt.managers.disagg_service import start_disagg_service

    cores = TwoCores()
    rows: list[dict[str, Any]] = []
    script = turns(*numbers, cores, rows)
    # The scheduler registers with the bootstrap server, as does the publisher.
    run = SchedulerInProcess(model, flags, script, give_up_s=3600.0, prepare=start_disagg_service)
    endpoint = run.scheduler.kv_events_publisher.prefix_registry.publisher.endpoint
    told = Path(path + ".endpoint")
    told.with_suffix(".part").write_text(json.dumps([endpoint.updates, endpoint.syncs]))
    told.with_suffix(".part").rename(told)  # whole, or not there
    run.run()
    sent = run.scheduler.kv_events_publisher.prefix_registry.publisher.updates_sent
    Path(path).write_text(json.dumps({"turns": rows, "updates": sent}))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], [int(word) for word in sys.argv[3:7]], sys.argv[7:])
