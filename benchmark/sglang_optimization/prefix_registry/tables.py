# SPDX-License-Identifier: Apache-2.0
"""Registering, removing and looking up blocks in one process, no network."""

from __future__ import annotations

import json
import random
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from common.stats import median, percentile

PROMPT_BLOCKS = 512
DIGEST_BYTES = 32


class Blocks:
    """``count`` blocks as prompts of 512, each a chain of digests of its own."""

    def __init__(self, count: int, seed: int) -> None:
        chance = random.Random(seed)
        self.prompts = [
            chance.randbytes(DIGEST_BYTES * PROMPT_BLOCKS) for _ in range(count // PROMPT_BLOCKS)
        ]
        self.count = len(self.prompts) * PROMPT_BLOCKS


class Arm(ABC):
    """One implementation; preparing its input is not measured."""

    name: str

    @abstractmethod
    def stored(self, blocks: Blocks) -> Sequence[Any]:
        """Arguments of ``register``, a prompt each."""

    @abstractmethod
    def gone(self, blocks: Blocks) -> Sequence[Any]:
        """Arguments of ``remove``, a prompt each."""

    @abstractmethod
    def asked(self, prompt: bytes, blocks: int) -> Any:
        """Argument of ``look_up``: the first ``blocks`` of a prompt."""

    @abstractmethod
    def register(self, argument: Any) -> None: ...

    @abstractmethod
    def remove(self, argument: Any) -> None: ...

    @abstractmethod
    def look_up(self, argument: Any) -> int:
        """Blocks of the longest known prefix."""

    def bytes_used(self) -> int | None:
        """Memory of all blocks, where the implementation can tell."""
        return None


class Registry(Arm):
    """This fork's table, in C++ or in Python."""

    def __init__(self, native: bool) -> None:
        self.name = "registry" if native else "registry (Python)"
        if native:
            from sgl_kernel_ext.prefix_table import DigestTable as Table
        else:
            from sglang.srt.disaggregation.prefix_registry.table import PythonDigestTable as Table
        self.table = Table(2**31)

    def stored(self, blocks: Blocks) -> Sequence[bytes]:
        return blocks.prompts

    gone = stored

    def asked(self, prompt: bytes, blocks: int) -> bytes:
        return prompt[: blocks * DIGEST_BYTES]

    def register(self, argument: bytes) -> None:
        self.table.store(argument, 1)

    def remove(self, argument: bytes) -> None:
        self.table.remove(argument, 1)

    def look_up(self, argument: bytes) -> int:
        return self.table.longest_prefix(argument)

    def bytes_used(self) -> int:
        return self.table.nbytes


class Dynamo(Arm):
    """The radix tree of NVIDIA Dynamo's router through its Python binding."""

    name = "dynamo"

    def __init__(self) -> None:
        from dynamo.llm import RadixTree

        self.tree = RadixTree()
        self.events = 0

    @staticmethod
    def _words(prompt: bytes) -> list[int]:
        # Its hashes are 64 bits: one of the tokens, one of the whole prefix.
        return [word & (2**63 - 1) for word in array("Q", prompt)]

    def _event(self, data: Any) -> bytes:
        self.events += 1
        return json.dumps({"event_id": self.events, "data": data, "dp_rank": 0}).encode()

    def stored(self, blocks: Blocks) -> list[bytes]:
        events = []
        for prompt in blocks.prompts:
            words = self._words(prompt)
            pages = [
                {"block_hash": words[i], "tokens_hash": words[i + 1]}
                for i in range(0, len(words), 4)
            ]
            events.append(self._event({"stored": {"parent_hash": None, "blocks": pages}}))
        return events

    def gone(self, blocks: Blocks) -> list[bytes]:
        return [
            self._event({"removed": {"block_hashes": self._words(prompt)[::4]}})
            for prompt in blocks.prompts
        ]

    def asked(self, prompt: bytes, blocks: int) -> list[int]:
        return self._words(prompt)[1::4][:blocks]

    def register(self, argument: bytes) -> None:
        self.tree.apply_event(0, argument)

    remove = register

    def look_up(self, argument: list[int]) -> int:
        return max(self.tree.find_matches(argument).scores.values(), default=0)


class PythonSet(Arm):
    """What a set of digests does: the least that any registry in Python costs."""

    name = "Python set"

    def __init__(self) -> None:
        self.known: set[bytes] = set()

    def stored(self, blocks: Blocks) -> list[list[bytes]]:
        return [self.asked(prompt, PROMPT_BLOCKS) for prompt in blocks.prompts]

    gone = stored

    def asked(self, prompt: bytes, blocks: int) -> list[bytes]:
        return [prompt[i : i + DIGEST_BYTES] for i in range(0, blocks * DIGEST_BYTES, DIGEST_BYTES)]

    def register(self, argument: list[bytes]) -> None:
        self.known.update(argument)

    def remove(self, argument: list[bytes]) -> None:
        self.known.difference_update(argument)

    def look_up(self, argument: list[bytes]) -> int:
        for count, digest in enumerate(argument):
            if digest not in self.known:
                return count
        return len(argument)


ARMS: dict[str, Callable[[], Arm]] = {
    "registry": lambda: Registry(True),
    "registry (Python)": lambda: Registry(False),
    "Python set": PythonSet,
    "dynamo": Dynamo,
}


def available() -> list[str]:
    """Arms that are installed here."""
    found = []
    for name in ARMS:
        try:
            ARMS[name]()
        except ModuleNotFoundError:
            continue
        found.append(name)
    return found


def measure(name: str, blocks: Blocks, look_ups: int, seed: int) -> dict[str, Any]:
    """One arm: blocks a second, look-ups a second and their tail, bytes a block."""
    arm = ARMS[name]()
    stored, gone = arm.stored(blocks), arm.gone(blocks)
    register_s = _timed(arm.register, stored)
    row: dict[str, Any] = {"arm": name, "register_per_s": blocks.count / register_s}
    used = arm.bytes_used()
    if used is not None:
        row["bytes_a_block"] = used / blocks.count
    chance = random.Random(seed)
    for size in (16, PROMPT_BLOCKS):
        asked = [arm.asked(chance.choice(blocks.prompts), size) for _ in range(look_ups)]
        times = []
        for argument in asked:
            start = time.perf_counter_ns()
            found = arm.look_up(argument)
            times.append((time.perf_counter_ns() - start) / 1e3)
            assert found == size, f"{name} found {found} of {size} blocks"
        row[f"look_up_{size}_per_s"] = 1e6 / median(times)
        row[f"look_up_{size}_p99_us"] = percentile(times, 99)
    row["remove_per_s"] = blocks.count / _timed(arm.remove, gone)
    probe = arm.asked(blocks.prompts[-1], 1)
    assert arm.look_up(probe) == 0, f"{name} still knows a removed block"
    return row


def _timed(call: Callable[[Any], None], arguments: Sequence[Any]) -> float:
    start = time.perf_counter()
    for argument in arguments:
        call(argument)
    return time.perf_counter() - start


def hashing(page_size: int, tokens: int, seed: int) -> dict[str, Any]:
    """Hashing a prompt, which comes before a look-up: tokens a second."""
    from sglang.srt.disaggregation.prefix_registry.digests import PageChain

    chance = random.Random(seed)
    prompt = array("q", (chance.randrange(128_000) for _ in range(tokens)))
    times = []
    for _ in range(30):
        chain = PageChain(prompt, page_size)
        start = time.perf_counter()
        chain.between(0, chain.pages)
        times.append(time.perf_counter() - start)
    return {
        "page_size": page_size,
        "tokens": tokens,
        "tokens_per_s": tokens / median(times),
        "us_a_prompt": median(times) * 1e6,
    }
