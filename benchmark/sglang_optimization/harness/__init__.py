# SPDX-License-Identifier: Apache-2.0
"""Starts, watches, drives and stops inference servers on this machine.

The demo, the server benchmarks and the end-to-end tests share it::

    from harness import ClosedLoop, Conversations, ServerSpec, drive, serve, summarize

    spec = ServerSpec(model, flags={"enable_metrics": True, "max_total_tokens": 4096})
    with serve(spec, spec.with_flags(radix_eviction_policy="adaptive"), report=print) as servers:
        for server in servers:
            before = server.metrics()
            results = drive(server.url, Conversations().requests(seed=1), ClosedLoop(4))
            print(summarize(results), (server.metrics() - before).total("sglang:evicted_tokens_total"))

============== ============================================================
spec           what to start: model, flags, environment
server         one process: start, readiness, log, HTTP questions, stop
guard          the parent of a server's processes; ends them whatever happens to us
launch         starts a guard and the server below it
preloaded      the same from a process that has imported sglang (zygote), in a fraction of the time
metrics        Prometheus samples and differences between scrapes
driver         open-loop and closed-loop clients that time every token
workload       seeded chat traffic
summary        percentiles and ratios of a run
disaggregation a prefill and a decode server that share a request
============== ============================================================
"""

from .driver import (
    ClosedLoop,
    OpenLoop,
    Request,
    Result,
    drive,
    drive_async,
    require_success,
)
from .metrics import Metrics
from .preloaded import Preloaded
from .server import Server, serve
from .spec import ServerError, ServerSpec, flag_arguments, free_port
from .summary import Summary, summarize
from .workload import Conversations

__all__ = [
    "ClosedLoop",
    "Conversations",
    "Metrics",
    "OpenLoop",
    "Preloaded",
    "Request",
    "Result",
    "Server",
    "ServerError",
    "ServerSpec",
    "Summary",
    "drive",
    "drive_async",
    "flag_arguments",
    "free_port",
    "require_success",
    "serve",
    "summarize",
]
