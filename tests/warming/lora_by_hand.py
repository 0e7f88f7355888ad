# SPDX-License-Identifier: Apache-2.0
"""Adapters that come, go and come again under a name that a listed prompt has.

python lora_by_hand.py MODEL RESULT.json ADAPTER OTHER_ADAPTER [server flags]
"""

from __future__ import annotations

from support.scheduler_in_process import SchedulerInProcess, main

TEXT = list(b"A manual that two tenants share, each with an adapter of its own. " * 3)
ASK = [*TEXT, *b"So?"]


class Run:
    """The script, and the listed prompts' states as it went on."""

    def __init__(self, model, adapters, flags):
        self.adapters = adapters
        self.seen = {}
        self.engine = SchedulerInProcess(model, flags, lambda _: self.inputs())
        self.warmer = self.engine.scheduler.cache_warmer

    def inputs(self):
        from sglang.srt.managers.io_struct import (
            LoadLoRAAdapterReqInput,
            UnloadLoRAAdapterReqInput,
        )

        first, second = self.adapters
        yield from self.settle("start")
        yield from self.answer("base")
        yield [LoadLoRAAdapterReqInput(lora_name="style", lora_path=first, lora_id="one")]
        yield from self.settle("loaded")
        yield from self.answer("with one", lora_id="one")
        yield [UnloadLoRAAdapterReqInput(lora_name="style", lora_id="one")]
        yield from self.settle("unloaded")
        yield [LoadLoRAAdapterReqInput(lora_name="style", lora_path=second, lora_id="two")]
        yield from self.settle("loaded again")
        yield from self.answer("with two", lora_id="two")

    def settle(self, name):
        """Until the engine idles and nothing is left to warm."""
        yield []
        yield from self.engine.until(self.engine.scheduler.is_fully_idle)
        if self.warmer is None:
            return
        yield from self.engine.until(lambda: not self.warmer.has_work())
        self.seen[name] = {
            prompt["name"]: (prompt["state"], prompt["cached_tokens"], prompt["pinned"])
            for prompt in self.warmer.planner.describe()["prompts"]
        }

    def answer(self, rid, **fields):
        yield [self.engine.generate(rid, ASK, 8, **fields)]
        yield from self.engine.until(lambda: rid in self.engine.ended)

    def result(self):
        engine = self.engine
        return {
            "output": engine.output,
            "cached": engine.cached,
            "seen": self.seen,
            "loaded": [o.success for o in engine.control if hasattr(o, "success")],
        }


if __name__ == "__main__":
    main(lambda model, rest: Run(model, rest[:2], rest[2:]))
