# SPDX-License-Identifier: Apache-2.0
"""A discrete-event model of the scheduler's loop, its device and closed-loop clients.

Two resources: the host, which runs one thing at a time, and the device, which works
through launched batches in order. A pass takes in arrivals, asks whether to overlap,
processes the last result if not, schedules a prefill of waiting requests or a decode of
the running ones, launches it, and processes the last result now if it was not before.

What overlapping costs is modelled, not assumed: a request's end is seen when its result
is processed. Until then its row is launched again (unless it ends by its length, which
is foreseen), its slot is taken, and its client waits.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from overlap.costs import StepCosts

PREFILL, DECODE = 0, 1
# decide(phase, rows) -> overlap the last batch's result?
Decide = Callable[[int, int], bool]
# observe(phase, rows, overlapped, schedule, launch, forward, process, waste)
Observe = Callable[..., None]


@dataclass(frozen=True)
class Traffic:
    """Closed-loop clients.

    Attributes:
        clients: requests alive at a time.
        slots: requests that run at a time; the rest waits.
        mean_tokens: tokens of an output, geometric with this mean.
        foreseen: share of outputs that end by their length limit.
        round_trip_s: from a request's last token to its client's next request.
    """

    clients: int
    slots: int
    mean_tokens: float
    foreseen: float = 0.0
    round_trip_s: float = 0.002


@dataclass
class _Request:
    arrived: float
    length: int
    foreseen: bool
    launched: int = 0
    written: int = 0
    ended: bool = False


@dataclass
class _Batch:
    phase: int
    rows: list[_Request]
    began: float  # on the device
    ended: float
    schedule: float
    launch: float


@dataclass
class Outcome:
    """What a run gave, after its warm-up.

    Attributes:
        tokens_per_s: useful tokens.
        ttft_s: mean time to the first token.
        wasted: share of decode rows computed for requests that had ended.
        overlapped: share of passes that overlapped.
    """

    tokens_per_s: float
    ttft_s: float
    wasted: float
    overlapped: float


@dataclass
class _Counters:
    tokens: int = 0
    rows: int = 0
    wasted: int = 0
    passes: int = 0
    overlapped: int = 0
    ttft: list[float] = field(default_factory=list)


def simulate(
    costs: StepCosts,
    traffic: Traffic,
    decide: Decide,
    *,
    tokens: int,
    seed: int,
    observe: Observe | None = None,
    noise: float = 0.1,
    synchronous: bool = False,
) -> Outcome:
    """Plays until ``tokens`` useful tokens are written; the first fifth is warm-up.

    The same seed gives every policy the same requests in the same order.

    Args:
        costs: of a step.
        traffic: of the clients.
        decide: asked about every queued result.
        observe: given every processed step's times, with ``noise``.
        noise: standard deviation of a cost over its mean.
        synchronous: a launch blocks until the batch has been computed.
    """
    rng, drawn = random.Random(seed), random.Random(seed + 1)
    arrivals: list[tuple[float, int]] = [(0.0, c) for c in range(traffic.clients)]
    heapq.heapify(arrivals)
    waiting: deque[_Request] = deque()
    running: list[_Request] = []
    queue: deque[_Batch] = deque()
    count = _Counters()
    host = device = 0.0
    started_at = 0.0
    schedule_spent = 0.0
    ends = 1.0 / max(1.0, traffic.mean_tokens)

    def cost(seconds: float) -> float:
        return max(0.0, seconds * rng.gauss(1.0, noise))

    def new_request(arrived: float) -> _Request:
        length = 1
        while drawn.random() > ends:
            length += 1
        return _Request(arrived, length, drawn.random() < traffic.foreseen)

    def process(overlapped: bool) -> None:
        nonlocal host
        batch = queue.popleft()
        host = max(host, batch.ended)
        spent = cost(costs.process.at(len(batch.rows)))
        host += spent
        wasted = 0
        for request in batch.rows:
            if request.ended:
                wasted += 1
                continue
            request.written += 1
            count.tokens += 1
            if request.written == 1:
                count.ttft.append(host - request.arrived)
            if request.written == request.length:
                request.ended = True
                heapq.heappush(arrivals, (host + traffic.round_trip_s, 0))
        if batch.phase == DECODE:
            count.rows += len(batch.rows)
            count.wasted += wasted
        if observe is not None:
            charged = wasted if waiting or wasted == len(batch.rows) else 0
            observe(
                batch.phase,
                len(batch.rows),
                overlapped,
                batch.schedule,
                batch.launch,
                batch.ended - batch.began,
                spent,
                charged / len(batch.rows),
            )

    warm = False
    while count.tokens < tokens:
        if not warm and count.tokens >= tokens // 5:
            warm, started_at = True, host
            tokens -= count.tokens
            count = _Counters()
        while arrivals and arrivals[0][0] <= host:
            waiting.append(new_request(heapq.heappop(arrivals)[0]))
        overlap = True
        if queue:
            overlap = decide(queue[0].phase, len(queue[0].rows))
            count.passes += 1
            count.overlapped += overlap
            if not overlap:
                process(False)
        spent = cost(costs.schedule.at(len(running)))
        host += spent
        schedule_spent += spent
        running = [r for r in running if not r.ended]
        admitted: list[_Request] = []
        while waiting and len(running) + len(admitted) < traffic.slots:
            admitted.append(waiting.popleft())
        rows = admitted or [r for r in running if not (r.foreseen and r.launched >= r.length)]
        if rows:
            phase = PREFILL if admitted else DECODE
            forward = costs.forward.at(len(rows))
            if admitted:
                forward = costs.forward.fixed + costs.prompt * len(rows)
            forward = cost(forward)
            launch = cost(costs.launch.at(len(rows)))
            began = max(host, device)
            ended = max(began + forward, host + launch)
            device = ended
            blocked = ended - host if synchronous else launch
            queue.append(_Batch(phase, rows, began, ended, schedule_spent, blocked))
            host += blocked
            schedule_spent = 0.0
            for request in rows:
                request.launched += 1
            running.extend(admitted)
            if overlap and len(queue) > 1:
                process(True)
        elif queue:
            process(True)
        else:
            schedule_spent = 0.0
            host = max(host, arrivals[0][0])
    span = host - started_at
    ttft = count.ttft
    return Outcome(
        tokens_per_s=count.tokens / span if span > 0 else 0.0,
        ttft_s=sum(ttft) / len(ttft) if ttft else 0.0,
        wasted=count.wasted / count.rows if count.rows else 0.0,
        overlapped=count.overlapped / count.passes if count.passes else 0.0,
    )
