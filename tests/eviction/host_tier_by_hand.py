# SPDX-License-Identifier: Apache-2.0
"""Adaptive eviction on both tiers of a real scheduler, with requests of two priorities.

python host_tier_by_hand.py MODEL RESULT.json [server flags]

Every prompt is asked several times, so that answers are computed from cold, from the
device and from what the host brought back; the tree is checked between the passes.
"""

from __future__ import annotations

import random

from support.scheduler_in_process import SchedulerInProcess, main, random_ids

CONVERSATIONS = 10
STEM_TOKENS = 96
ROUNDS = 6


class Run:
    """The script and what it saw."""

    def __init__(self, model, flags):
        self.engine = SchedulerInProcess(model, flags, lambda _: self.inputs())
        self.cache = self.engine.scheduler.tree_cache
        self.prompts = {}
        self.checks = self.loaded_back = 0
        load_back = self.cache.init_load_back

        def counted(*args, **more):
            self.loaded_back += 1
            return load_back(*args, **more)

        self.cache.init_load_back = counted

    def inputs(self):
        rng = random.Random(11)
        stems = [random_ids(rng, STEM_TOKENS) for _ in range(CONVERSATIONS)]
        tails = [[random_ids(rng, 24) for _ in range(2)] for _ in stems]
        for number in range(ROUNDS):
            order = list(range(CONVERSATIONS))
            rng.shuffle(order)
            for chosen in order:
                turn = rng.randrange(2)
                rid = f"{number}-{chosen}-{turn}"
                self.prompts[rid] = f"{chosen}-{turn}"
                prompt = [*stems[chosen], *tails[chosen][turn]]
                yield [self.engine.generate(rid, prompt, 4, priority=int(chosen == 0))]
                for _ in range(rng.randint(0, 6)):
                    yield []
            yield from self.engine.until(lambda: len(self.engine.ended) == len(self.prompts))
            yield from self.engine.until(self.engine.scheduler.is_fully_idle)
            self.cache.sanity_check()
            self.checks += 1

    def result(self):
        from prometheus_client import REGISTRY
        from sglang.srt.mem_cache.adaptive_eviction import find_policy

        answers: dict[str, list] = {}
        for rid, prompt in self.prompts.items():
            answers.setdefault(prompt, []).append(self.engine.output[rid])
        allocator = self.cache.token_to_kv_pool_allocator
        return {
            "answers": answers,
            "cached": self.engine.cached,
            "loaded_back": self.loaded_back,
            "checks": self.checks,
            "free": allocator.available_size() + self.cache.evictable_size(),
            "size": allocator.size,
            "report": find_policy(self.cache).report(),
            "metrics": [
                [sample.name, sample.labels, sample.value]
                for family in REGISTRY.collect()
                for sample in family.samples
                if sample.name.startswith("sglang:adaptive_eviction")
            ],
        }


if __name__ == "__main__":
    main(Run)
