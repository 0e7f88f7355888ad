# SPDX-License-Identifier: Apache-2.0
"""Random traffic through a small device pool with a real host tier behind it.

python host_tier_by_hand.py MODEL RESULT.json [server flags]

After every call of the policy each remembered match is compared with a fresh one.
"""

from __future__ import annotations

import random

from support.scheduler_in_process import SchedulerInProcess, main, random_ids

STEMS = 8
STEM_TOKENS = 120
REQUESTS = 96


class Run:
    """The script, and what every call of the policy showed."""

    def __init__(self, model, flags):
        self.wrong = []
        self.host_hits = 0
        self.checked = 0
        self.engine = SchedulerInProcess(model, flags, lambda _: self.inputs())
        self.scheduler = self.engine.scheduler
        self.order = self.scheduler.policy.prefix_order
        plain_sort = self.order.sort

        def sort(waiting_queue, processed_tokens):
            plain_sort(waiting_queue, processed_tokens)
            self.compare(waiting_queue)

        self.order.sort = sort

    def compare(self, waiting_queue):
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        for req in waiting_queue:
            entry = self.order._entries[req]
            key = RadixKey(entry.tokens, req.extra_key, cache_salt=req.cache_salt)
            fresh = self.scheduler.tree_cache.match_prefix(MatchPrefixParams(key=key))
            expected = fresh.device_prefix_len + fresh.host_hit_length
            self.checked += 1
            self.host_hits += fresh.host_hit_length > 0
            if (entry.matched, entry.host_hit) != (expected, fresh.host_hit_length > 0):
                self.wrong.append(
                    [
                        req.rid,
                        entry.matched,
                        entry.host_hit,
                        fresh.device_prefix_len,
                        fresh.host_hit_length,
                    ]
                )

    def inputs(self):
        rng = random.Random(5)
        stems = [random_ids(rng, STEM_TOKENS) for _ in range(STEMS)]
        made = 0
        while made < REQUESTS:
            burst = []
            for _ in range(rng.randint(4, 12)):
                stem = rng.choice(stems)[: rng.choice((STEM_TOKENS, STEM_TOKENS, 70))]
                tail = random_ids(rng, rng.randint(4, 40))
                burst.append(
                    self.engine.generate(f"r{made:03d}", [*stem, *tail], rng.randint(2, 6))
                )
                made += 1
            yield burst
            # Stems must have time to leave the device before they are asked for again.
            backlog = rng.randint(0, 6)
            yield from self.engine.until(
                lambda most=backlog: len(self.scheduler.waiting_queue) <= most
            )
        yield from self.engine.until(lambda: len(self.engine.ended) == made)
        yield from self.engine.until(self.scheduler.is_fully_idle)
        yield from self.a_host_prefix_goes_first(stems)

    def a_host_prefix_goes_first(self, stems):
        """A cold request came before it; one request runs at a time."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        self.scheduler.tree_cache.evict(EvictParams(num_tokens=1 << 20))
        yield []
        yield [
            self.engine.generate("blocker", [7] * 40, 12),
            self.engine.generate("cold", [9] * 150, 2),
            self.engine.generate("from host", [*stems[0], 5, 6, 7], 2),
        ]
        names = ("blocker", "cold", "from host")
        yield from self.engine.until(lambda: all(name in self.engine.ended for name in names))
        yield from self.engine.until(self.scheduler.is_fully_idle)

    def result(self):
        return {
            "cached": self.engine.cached,
            "ended": list(self.engine.ended),
            "core": type(self.scheduler.tree_cache.tree_core).__name__,
            "wrong": self.wrong[:5],
            "checked": self.checked,
            "host_hits": self.host_hits,
            "counts": dict(self.order.watch.counts),
            "sweeping": self.order.sweeping,
        }


if __name__ == "__main__":
    main(Run)
