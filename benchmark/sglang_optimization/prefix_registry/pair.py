# SPDX-License-Identifier: Apache-2.0
"""The served instances of the benchmark's last part, and requests through two of them."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from common import progress
from common.cli import BenchError
from harness import Preloaded, Request, Result, Server, ServerError, ServerSpec, free_port
from harness.disaggregation import disaggregated_pair, missing_transfer_engine
from harness.driver import send

PAGE_SIZE = 16
PROMPT_TOKENS = 512
# Full after a few rounds, so that each request evicts as much as it stores.
PREFILL_CAPACITY = 8192
# Four requests of 512 tokens and the reserve.
DECODE_CAPACITY = 2304
RESERVED_A_REQUEST = 32
TIMEOUT_S = 300.0
# One thread for each process: the pair then has a core for prefill and one for the rest.
THREADS = "OMP_NUM_THREADS"
LOGS = Path(__file__).resolve().parents[3] / "build" / "logs"


@dataclass(frozen=True)
class Pair:
    """Two servers that hand a request's KV over."""

    prefill: Server
    decode: Server

    def address(self) -> str:
        """The prefill instance's name in the registry."""
        return f"{self.prefill.spec.host}:{self._bootstrap_port()}"

    def _bootstrap_port(self) -> int:
        return int(self.prefill.spec.flags["disaggregation_bootstrap_port"])  # type: ignore[arg-type]

    async def ask(
        self, client: aiohttp.ClientSession, prompt: Sequence[int], new_tokens: int, index: int = 0
    ) -> Result:
        """One greedy request; times are of decode's answer.

        Raises:
            BenchError: either side failed.
        """
        request = Request(
            prompt,
            new_tokens,
            sampling={"ignore_eos": True},
            extra={
                "bootstrap_host": self.prefill.spec.host,
                "bootstrap_port": self._bootstrap_port(),
                "bootstrap_room": random.getrandbits(62),
            },
        )
        answers = await asyncio.gather(
            *(
                send(client, server.url, request, index, TIMEOUT_S)
                for server in (self.prefill, self.decode)
            )
        )
        for server, answer in zip((self.prefill, self.decode), answers, strict=True):
            if answer.error is not None:
                raise BenchError(f"{server.spec.name}: {answer.error}; see {server.log_path}")
        return answers[1]

    def ask_all(
        self, prompts: Sequence[Sequence[int]], clients: int, new_tokens: int = 1
    ) -> tuple[float, list[Result]]:
        """All prompts from ``clients`` clients; seconds and answers."""

        async def run() -> list[Result]:
            slots = asyncio.Semaphore(clients)
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as client:

                async def one(prompt: Sequence[int]) -> Result:
                    async with slots:
                        return await self.ask(client, prompt, new_tokens)

                return list(await asyncio.gather(*map(one, prompts)))

        begin = time.perf_counter()
        answers = asyncio.run(run())
        return time.perf_counter() - begin, answers

    def updates_address(self) -> str:
        """Where the prefill instance publishes, as decode's registry knows."""
        instances = self.decode.get("/prefix_registry")["instances"]
        (found,) = [each for each in instances if each["instance"] == self.address()]
        return found["ranks"][0]["address"]

    def estimate(self, prompt: Sequence[int]) -> int:
        """What decode's registry says that prefill has of a prompt."""
        answer = self.decode.post("/prefix_registry/estimate", {"input_ids": list(prompt)})
        found = {each["instance"]: each["prefix_tokens"] for each in answer["instances"]}
        return found.get(self.address(), 0)


def random_tokens(chance: random.Random, count: int) -> list[int]:
    """Ids that every model's vocabulary has."""
    return [chance.randrange(100, 250) for _ in range(count)]


@contextmanager
def servers(model: Path, wanted: dict[str, tuple[str, dict]]) -> Iterator[dict[str, Server]]:
    """Starts servers from one process that has imported sglang, all at once.

    Args:
        wanted: mode ("prefill" or "decode") and further flags, by name.

    Raises:
        BenchError: one did not start, or no KV can be handed over here.
    """
    why_not = missing_transfer_engine()
    if why_not is not None:
        raise BenchError(f"the pair cannot be served: {why_not}; see requirements/dev.txt")
    flags = {
        "dtype": "float32",
        "page_size": PAGE_SIZE,
        "served_model_name": "model",
        "chunked_prefill_size": 1024,
        "enable_metrics": True,
        "random_seed": 1,
        # What stands idle must leave the cores to those under test.
        "sleep_on_idle": True,
    }
    with ExitStack() as stack:
        stack.enter_context(_one_thread())
        preloaded = Preloaded(LOGS)
        stack.callback(preloaded.close)
        running: dict[str, Server] = {}
        for name, (mode, more) in wanted.items():
            prefill, decode = disaggregated_pair(ServerSpec(model, flags), free_port())
            spec = {"prefill": prefill, "decode": decode}[mode].with_flags(**more)
            server = Server(replace(spec, name=name), LOGS, preloaded.start)
            stack.callback(server.stop)
            running[name] = server.start()
        try:
            for server in running.values():
                server.wait_ready(progress.note)
        except ServerError as error:
            raise BenchError(str(error)) from error
        yield running


@contextmanager
def _one_thread() -> Iterator[None]:
    """Set here, for it is read during the imports, which the servers inherit."""
    before = os.environ.get(THREADS)
    os.environ[THREADS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[THREADS]
        else:
            os.environ[THREADS] = before
