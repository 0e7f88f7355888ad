# SPDX-License-Identifier: Apache-2.0
"""Agents that branch off what another agent is generating."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import aiohttp

from common.cli import BenchError
from harness import Request, Result
from harness.driver import send

TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Branching:
    """Every root is continued by ``branches`` others now and then while it runs.

    Attributes:
        roots: prompts (token ids), all running at once.
        output: tokens a root generates.
        every: mean tokens of output between two branch points; each distance is drawn
            between half of it and one and a half, so that no interval fits them.
        branches: requests at a branch point.
        suffix: tokens that a branch adds to what it continues.
        answer: tokens a branch generates.
    """

    roots: Sequence[Sequence[int]]
    output: int = 384
    every: int = 96
    branches: int = 2
    suffix: int = 6
    answer: int = 8


@dataclass
class Branch:
    """One branch: what it continued and what became of it.

    Attributes:
        known: tokens of its prompt that the server had computed when it was sent: the
            root's prompt and all but the last token of the output it continues.
        generated: those of them that are the root's output.
    """

    root: int
    known: int
    generated: int
    result: Result

    @property
    def recomputed(self) -> int:
        """Known tokens that the cache did not serve."""
        return max(0, self.known - self.result.cached_tokens)


@dataclass
class Outcome:
    """Outputs of the roots and all branches, in the order of roots and branch points."""

    roots: list[list[int]] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)

    def answers(self) -> list[list[int]]:
        """All output ids, roots first."""
        return [*self.roots, *(branch.result.output_ids for branch in self.branches)]


def branch_points(rng: random.Random, work: Branching) -> list[int]:
    """Returns the tokens of output at which one root is continued."""
    points = []
    at = 0
    while True:
        at += rng.randint(max(1, work.every // 2), work.every * 3 // 2)
        if at >= work.output:
            return points
        points.append(at)


async def _stream(
    client: aiohttp.ClientSession, url: str, request: Request
) -> AsyncIterator[list[int]]:
    """Output ids so far, as they arrive."""
    path, body = request.body()
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with client.post(url + path, json=body, timeout=timeout) as response:
        if response.status != 200:
            raise BenchError(f"HTTP {response.status}: {(await response.text())[:300]}")
        async for raw in response.content:
            line = raw.decode().strip().removeprefix("data:").strip()
            if line and line != "[DONE]":
                yield json.loads(line)["output_ids"]


async def _root(
    client: aiohttp.ClientSession, url: str, work: Branching, index: int, seed: int
) -> tuple[list[int], list[Branch]]:
    rng = random.Random(f"{seed}-{index}")
    prompt = list(work.roots[index])
    points = branch_points(rng, work)
    # Drawn beforehand: the same in every arm, whatever the order of arrival.
    suffixes = {
        point: [rng.sample(prompt, work.suffix) for _ in range(work.branches)] for point in points
    }
    tasks: list[asyncio.Task[Branch]] = []
    output: list[int] = []
    waiting = list(points)
    more = {"ignore_eos": True}

    async def branch(point: int, suffix: list[int]) -> Branch:
        ids = prompt + output[:point] + suffix
        request = Request(ids, work.answer, sampling=more)
        known = len(prompt) + point - 1
        return Branch(index, known, point - 1, await send(client, url, request, 0, TIMEOUT_S))

    request = Request(prompt, work.output, sampling=more)
    async for ids in _stream(client, url, request):
        output = ids
        while waiting and len(output) >= waiting[0]:
            point = waiting.pop(0)
            tasks += [asyncio.create_task(branch(point, s)) for s in suffixes[point]]
    return output, list(await asyncio.gather(*tasks))


async def _run(url: str, work: Branching, seed: int) -> Outcome:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client:
        all_roots = [_root(client, url, work, i, seed) for i in range(len(work.roots))]
        outcome = Outcome()
        for output, branches in await asyncio.gather(*all_roots):
            outcome.roots.append(output)
            outcome.branches += branches
    failed = [b.result.error for b in outcome.branches if b.result.error is not None]
    if failed:
        raise BenchError(f"{len(failed)} branches failed: {failed[0]}")
    return outcome


def branch_off(url: str, work: Branching, seed: int) -> Outcome:
    """Run the workload.

    Raises:
        BenchError: a request failed.
    """
    return asyncio.run(_run(url, work, seed))
