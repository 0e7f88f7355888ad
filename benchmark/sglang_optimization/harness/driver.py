# SPDX-License-Identifier: Apache-2.0
"""Sends requests to a server as a stream of clients would, and times every token.

Closed loop: a fixed number of clients, each sends the next request of the list when its last
one ended. Open loop: requests are sent at their arrival times whether or not earlier ones ended, which
is what shows queueing. In both, requests of one session keep their order: a turn is sent only
after the turn before it has been answered.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

Message = Mapping[str, str]
Prompt = str | Sequence[int] | Sequence[Message]


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        prompt: text, token ids (both go to ``/generate``) or chat messages (which go to
            ``/v1/chat/completions``).
        max_new_tokens: most tokens to generate.
        arrival_s: seconds after the start of the run (open loop).
        session: requests that share a session are sent in order, one at a time.
        sampling: sampling parameters; greedy when empty.
        extra: further fields of the request's JSON, such as ``extra_key`` or ``priority``.
    """

    prompt: Prompt
    max_new_tokens: int = 16
    arrival_s: float = 0.0
    session: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def is_chat(self) -> bool:
        """Whether the prompt is a list of chat messages."""
        return bool(self.prompt) and isinstance(self.prompt[0], Mapping)

    def body(self) -> tuple[str, dict[str, Any]]:
        """Returns the path and the JSON to post, streaming."""
        sampling = {"temperature": 0, **self.sampling}
        if self.is_chat():
            return "/v1/chat/completions", {
                "model": "default",
                "messages": [dict(message) for message in self.prompt],  # type: ignore[arg-type]
                "max_tokens": self.max_new_tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
                **sampling,
                **self.extra,
            }
        text = isinstance(self.prompt, str)
        return "/generate", {
            "text" if text else "input_ids": self.prompt if text else list(self.prompt),
            "sampling_params": {"max_new_tokens": self.max_new_tokens, **sampling},
            "stream": True,
            **self.extra,
        }


@dataclass
class Result:
    """What became of one request. Times in seconds.

    Attributes:
        index: position of the request in the list given to :func:`drive`.
        late_s: how long after its arrival time it was sent (its session's turn before was
            still running, or this process was late).
        ttft_s: from sending to the first token; ``None`` without a token.
        itl_s: time between tokens; a chunk of n tokens counts as n equal gaps.
        latency_s: from sending to the end.
        prompt_tokens, cached_tokens, completion_tokens: as the server reports them. For chat,
            ``cached_tokens`` needs the flag ``--enable-cache-report``.
        output_ids: generated token ids (``/generate`` only).
        error: what went wrong; ``None`` on success.
        meta: the server's ``meta_info`` or ``usage``.
    """

    index: int
    session: str | None = None
    late_s: float = 0.0
    ttft_s: float | None = None
    itl_s: list[float] = field(default_factory=list)
    latency_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    text: str = ""
    output_ids: list[int] = field(default_factory=list)
    finish_reason: Any = None
    error: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ClosedLoop:
    """``concurrency`` clients, each with one request under way."""

    concurrency: int = 1

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {self.concurrency}")


@dataclass(frozen=True)
class OpenLoop:
    """Requests are sent at ``arrival_s / speed``; ``limit`` bounds those under way."""

    speed: float = 1.0
    limit: int = 1024

    def __post_init__(self) -> None:
        if self.speed <= 0 or self.limit < 1:
            raise ValueError(f"speed must be above 0 and limit at least 1, got {self}")


Schedule = ClosedLoop | OpenLoop
OnResult = Callable[[Result], None]


def drive(
    url: str,
    requests: Sequence[Request],
    schedule: Schedule | None = None,
    on_result: OnResult = lambda result: None,
    timeout_s: float = 600.0,
) -> list[Result]:
    """Sends ``requests`` to the server at ``url`` and returns a result for each, in order.

    A failed request does not end the run: its result has ``error`` set (see
    :func:`require_success`). ``on_result`` is called as each one ends.
    """
    return asyncio.run(drive_async(url, requests, schedule, on_result, timeout_s))


async def drive_async(
    url: str,
    requests: Sequence[Request],
    schedule: Schedule | None = None,
    on_result: OnResult = lambda result: None,
    timeout_s: float = 600.0,
) -> list[Result]:
    """:func:`drive` inside a running event loop."""
    schedule = schedule or ClosedLoop()
    previous = _previous_of_session(requests)
    ended = [asyncio.Event() for _ in requests]
    results: list[Result] = [Result(index) for index in range(len(requests))]

    async def turn_before(index: int) -> None:
        before = previous[index]
        if before is not None:
            await ended[before].wait()

    async def one(index: int) -> Result:
        try:
            results[index] = await send(client, url, requests[index], index, timeout_s)
        finally:
            ended[index].set()
        return results[index]

    async def closed_client(indices: Iterator[int]) -> None:
        for index in indices:
            await turn_before(index)
            on_result(await one(index))

    async def open_client(index: int, due: float, slots: asyncio.Semaphore) -> None:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await turn_before(index)  # not while holding a slot that the turn before may need
        async with slots:
            result = await one(index)
        result.late_s = max(0.0, time.perf_counter() - result.latency_s - due)
        on_result(result)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client, asyncio.TaskGroup() as group:
        if isinstance(schedule, OpenLoop):
            begin, slots = time.perf_counter(), asyncio.Semaphore(schedule.limit)
            for index, request in enumerate(requests):
                due = begin + request.arrival_s / schedule.speed
                group.create_task(open_client(index, due, slots))
        else:
            order = iter(range(len(requests)))  # shared: each client takes the next in the list
            for _ in range(schedule.concurrency):
                group.create_task(closed_client(order))
    return results


def _previous_of_session(requests: Sequence[Request]) -> list[int | None]:
    last: dict[str, int] = {}
    previous: list[int | None] = []
    for index, request in enumerate(requests):
        previous.append(last.get(request.session) if request.session is not None else None)
        if request.session is not None:
            last[request.session] = index
    return previous


async def send(
    client: aiohttp.ClientSession, url: str, request: Request, index: int, timeout_s: float
) -> Result:
    """Sends one request and reads its stream to the end."""
    result = Result(index, request.session)
    path, body = request.body()
    clock = _TokenClock(result)
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with client.post(url + path, json=body, timeout=timeout) as response:
            if response.status != 200:
                result.error = f"HTTP {response.status}: {(await response.text())[:500]}"
            else:
                read = _read_chat if request.is_chat() else _read_generate
                await read(response, result, clock)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        result.error = f"{type(error).__name__}: {error}"
    result.latency_s = clock.elapsed()
    if result.error is None and result.ttft_s is None and request.max_new_tokens > 0:
        result.error = "the stream ended without a token"
    return result


class _TokenClock:
    """Turns arrivals of chunks into TTFT and inter-token times."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.begin = self.last = time.perf_counter()

    def elapsed(self) -> float:
        return time.perf_counter() - self.begin

    def tick(self, tokens: int) -> None:
        """Notes that ``tokens`` new tokens have arrived now."""
        if tokens <= 0:
            return
        now = time.perf_counter()
        if self.result.ttft_s is None:
            self.result.ttft_s = now - self.begin
            self.last = now  # the rest of the first chunk came with its first token
            tokens -= 1
        if tokens:
            gap = (now - self.last) / tokens
            self.result.itl_s += [gap] * tokens
        self.last = now


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yields the JSON objects of a server-sent event stream up to ``[DONE]``."""
    async for raw in response.content:
        line = raw.decode().strip()
        if line.startswith("data:"):
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                return
            yield json.loads(data)
    raise ValueError("the stream broke off before [DONE]")


async def _read_generate(
    response: aiohttp.ClientResponse, result: Result, clock: _TokenClock
) -> None:
    seen = 0
    async for event in _events(response):
        if "error" in event:
            raise ValueError(f"the server reported {event['error']}")
        meta = result.meta = event["meta_info"]
        count = meta.get("completion_tokens", 0)
        clock.tick(count - seen)
        seen = max(seen, count)
        result.text = event.get("text", result.text)
        result.output_ids = event.get("output_ids", result.output_ids)
        result.finish_reason = meta.get("finish_reason")
        result.prompt_tokens = meta.get("prompt_tokens", 0)
        result.cached_tokens = meta.get("cached_tokens", 0)
        result.completion_tokens = seen
    if isinstance(result.finish_reason, Mapping) and result.finish_reason.get("type") == "abort":
        result.error = f"aborted: {result.finish_reason.get('message', '')}"


async def _read_chat(response: aiohttp.ClientResponse, result: Result, clock: _TokenClock) -> None:
    async for event in _events(response):
        if "error" in event:
            raise ValueError(f"the server reported {event['error']}")
        for choice in event.get("choices", ()):
            delta = choice.get("delta", {})
            text = (delta.get("content") or "") + (delta.get("reasoning_content") or "")
            clock.tick(1 if text else 0)  # a chat chunk does not say how many tokens it holds
            result.text += text
            result.finish_reason = choice.get("finish_reason") or result.finish_reason
        if usage := event.get("usage"):
            result.meta = usage
            result.prompt_tokens = usage["prompt_tokens"]
            result.completion_tokens = usage.get("completion_tokens", 0)
            details = usage.get("prompt_tokens_details") or {}
            result.cached_tokens = details.get("cached_tokens", 0)
    if result.completion_tokens and result.ttft_s is None:
        clock.tick(1)  # only tokens that show no text, such as an immediate end of sequence


def require_success(results: Sequence[Result]) -> None:
    """Raises unless every request succeeded.

    Raises:
        RuntimeError: names how many failed and the first reasons.
    """
    failed = [result for result in results if result.error is not None]
    if failed:
        shown = "; ".join(f"#{result.index}: {result.error}" for result in failed[:3])
        raise RuntimeError(f"{len(failed)} of {len(results)} requests failed: {shown}")
