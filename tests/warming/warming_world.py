# SPDX-License-Identifier: Apache-2.0
"""A real tree and a real planner; an engine that inserts instead of computing."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_warming.metrics import WarmingMetrics
from sglang.srt.mem_cache.cache_warming.pins import PinTable
from sglang.srt.mem_cache.cache_warming.planner import Planner
from sglang.srt.mem_cache.cache_warming.prefix_index import PrefixKey
from sglang.srt.mem_cache.cache_warming.settings import WarmingSettings
from sglang.srt.mem_cache.cache_warming.steps import DropStep, PinStep, PrefillStep, UnpinStep
from sglang.srt.mem_cache.cache_warming.tree import cached_tokens, drop_prefix

from eviction.pool import make_cache

CORES = ("rust", "python")


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class World:
    """One cache with its pool, a planner, and the engine's part of a step.

    ``seconds`` is what the engine takes for so many tokens.
    """

    def __init__(
        self,
        folder: Path,
        prompts: list[dict[str, Any]],
        *,
        core: str = "rust",
        page_size: int = 1,
        capacity: int = 256,
        is_eagle: bool = False,
        chunk: int = 16,
        budget: int | None = None,
        seconds: Callable[[int], float] = lambda tokens: 0.5,
        **settings: Any,
    ) -> None:
        path = folder / "prompts.json"
        path.write_text(json.dumps({"prompts": prompts}))
        self.cache = make_cache(
            capacity=capacity, page_size=page_size, core=core, is_eagle=is_eagle
        )
        self.tail = int(is_eagle)
        self.pins = PinTable(self.cache)
        self.clock = Clock()
        self.metrics = WarmingMetrics()
        self.adapters: dict[str, str] = {}
        self.steps: list[Any] = []
        self.capacity = capacity
        self.seconds = seconds
        self.planner = Planner(
            WarmingSettings(
                path=str(path),
                mode=settings.pop("mode", "kv"),
                chunk_tokens=chunk,
                budget_tokens=capacity if budget is None else budget,
                page_size=page_size,
                uncached_tail=self.tail,
                **settings,
            ),
            cached_tokens=lambda key: cached_tokens(self.cache, key),
            render=lambda spec: array("q", spec.input_ids),
            lora_id_of=self.adapters.get,
            metrics=self.metrics,
            clock=self.clock,
        )

    # ---- the engine -----------------------------------------------------

    def insert(self, key: PrefixKey) -> bool:
        """Compute ``key`` as a request would; False if the pool has no room."""
        cache, page = self.cache, self.cache.page_size
        radix_key = key.radix_key()
        units = (len(key.tokens) - self.tail) // page * page
        found = cache.match_prefix(MatchPrefixParams(key=radix_key))
        if units <= found.device_prefix_len:
            return True
        lock = cache.lock(found.last_device_node)
        allocator = cache.token_to_kv_pool_allocator
        need = units - found.device_prefix_len
        if allocator.available_size() < need:
            allocator.evict_to_free_tokens(cache, need)
        slots = allocator.alloc(need)
        if slots is not None:
            path = cache.path_device_indices(found.last_device_node)
            # A value a token; the last one of EAGLE's pairs has none of its own.
            values = torch.cat(
                [path[: found.device_prefix_len], slots, slots[len(slots) - self.tail :]]
            )
            cache.insert(
                InsertParams(
                    key=key.upto(units + self.tail).radix_key(),
                    value=values,
                    prev_prefix_len=found.device_prefix_len,
                )
            )
        cache.unlock(lock)
        return slots is not None

    def take(self, step: Any) -> None:
        """Carry one step out, as ``CacheWarmer.handle`` does on a rank."""
        self.steps.append(step)
        done = True
        if isinstance(step, PinStep):
            done = self.pins.pin(step.name, step.key, step.lora_id)
        elif isinstance(step, UnpinStep):
            self.pins.unpin(step.name)
        elif isinstance(step, DropStep):
            drop_prefix(self.cache, step.key)
        self.planner.step_taken(step, done)
        if isinstance(step, PrefillStep):
            extra_key = step.extra_key
            if step.lora_id is not None:
                extra_key = (extra_key or "") + step.lora_id
            key = PrefixKey(step.tokens, extra_key, step.cache_salt)
            computed = len(step.tokens) - cached_tokens(self.cache, key)
            if self.insert(key):
                self.planner.prefill_done(step, self.seconds(computed))
            else:
                self.planner.prefill_withdrawn(step, no_room=True)

    def idle(self, limit: int = 2000) -> int:
        """Idle until nothing is left to do; returns the passes that took."""
        for passes in range(limit):
            if not self.planner.has_work():
                return passes
            if (step := self.planner.next_step()) is not None:
                self.take(step)
        raise AssertionError(f"still busy after {limit} idle passes")

    def traffic(self, tokens: Sequence[int], **namespace: Any) -> None:
        """A real request comes and is computed."""
        self.planner.on_traffic()
        assert self.insert(PrefixKey(array("q", tokens), **namespace))

    def flush(self) -> None:
        """As ``Scheduler.flush_cache``."""
        self.cache.reset()
        self.cache.token_to_kv_pool_allocator.clear()
        self.pins.forget()
        self.planner.on_tree_reset()

    # ---- what there is --------------------------------------------------

    def entry(self, name: str) -> dict[str, Any]:
        return next(p for p in self.planner.describe()["prompts"] if p["name"] == name)

    def states(self) -> dict[str, str]:
        return {p["name"]: p["state"] for p in self.planner.describe()["prompts"]}

    def cached(self, tokens: Sequence[int], **namespace: Any) -> int:
        return cached_tokens(self.cache, PrefixKey(array("q", tokens), **namespace))

    def prefills(self) -> list[PrefillStep]:
        return [step for step in self.steps if isinstance(step, PrefillStep)]


def prompt(name: str, start: int, length: int, **fields: Any) -> dict[str, Any]:
    """An entry of ``length`` consecutive token ids."""
    return {"name": name, "input_ids": list(range(start, start + length)), **fields}
