# SPDX-License-Identifier: Apache-2.0
"""The benchmark's command line: options to runs, runs to rows."""

from __future__ import annotations

import argparse
import gc
import itertools
from dataclasses import replace
from typing import Any

from common import cli, progress, result
from eviction.readers import read_trace

from . import report
from .arms import WHOLE_QUEUE, Arm, resolve
from .jobs import SHAPES, from_trace, shape

QUICK_POLICIES = "all"
QUICK_QUEUES = (96, 256)
FULL_QUEUES = (16, 128, 512, 4096)
# Matching the whole queue at every call takes up to a second a call at 4,096.
WHOLE_QUEUE_QUICK = 128
WHOLE_QUEUE_LONG = 512
CAPACITY = {"shared": 131_072, "none": 131_072, "mixed": 131_072, "hot": 65_536}
TRACE_CAPACITY = 1_000_000
# The public conversation trace offers 41,000 prompt tokens a second: about as much as an
# engine of this speed computes when a part of them is cached, so that queues come and go.
TRACE_PREFILL_TPS = 40_000.0
TRACE_REQUESTS = 600


def arguments() -> argparse.ArgumentParser:
    """The parser of ``bench_scheduling.py``."""
    parser = cli.parser(
        __doc__ or "",
        epilog="Without options: all policies on small queues, about two minutes. With --full "
        "queues up to 4,096, about an hour, where policies that match the whole queue at every "
        "call run above 512 waiting on 'shared' only; exit code 1 if a target is missed.",
    )
    parser.description = (
        "Drive SGLang's SchedulePolicy on its radix cache, without a model: hit ratio, "
        "cost of a policy call, waits and fairness."
    )
    parser.add_argument(
        "--policies",
        type=cli.comma_list,
        default=QUICK_POLICIES,
        metavar="LIST",
        help="names, all, or custom (lpm with --config)",
    )
    parser.add_argument(
        "--config",
        type=cli.json_object,
        default=argparse.SUPPRESS,
        metavar="JSON",
        help="--schedule-policy-config of the policy named custom",
    )
    parser.add_argument(
        "--workloads",
        type=cli.words_of("workload", SHAPES),
        default=list(SHAPES),
        metavar="LIST",
        help=", ".join(SHAPES),
    )
    parser.add_argument(
        "--queues",
        type=cli.positive_list,
        default=argparse.SUPPRESS,
        metavar="LIST",
        help=f"waiting requests to hold (default: {_words(QUICK_QUEUES)}; "
        f"with --full {_words(FULL_QUEUES)})",
    )
    parser.add_argument(
        "--admissions",
        type=cli.positive,
        default=argparse.SUPPRESS,
        metavar="N",
        help="requests measured in a run (default: 200; "
        "with --full as many as wait, at least 2,000)",
    )
    parser.add_argument(
        "--trace",
        type=cli.input_file,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="replay a Mooncake trace with its arrival times instead of the workloads",
    )
    parser.add_argument(
        "--speed", type=cli.factor, default=1.0, metavar="X", help="replay X times as fast"
    )
    parser.add_argument(
        "--limit",
        type=cli.positive,
        default=argparse.SUPPRESS,
        metavar="N",
        help=f"first N requests of the trace (default: {TRACE_REQUESTS}; with --full all)",
    )
    parser.add_argument(
        "--capacity",
        type=cli.positive,
        default=argparse.SUPPRESS,
        metavar="TOKENS",
        help="KV pool (default: by workload, 65,536 or 131,072; 1,000,000 for a trace)",
    )
    parser.add_argument("--page-size", type=cli.positive, default=1, metavar="N", help="tokens")
    parser.add_argument("--core", choices=("rust", "python"), default="rust", help="tree core")
    parser.add_argument(
        "--eviction",
        choices=("lru", "adaptive"),
        default="lru",
        help="eviction policy of the cache; adaptive runs on the Python core",
    )
    parser.set_defaults(
        config=None, queues=None, admissions=None, trace=None, limit=None, capacity=None
    )
    cli.add_output_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run what the options ask for, print it, write it; 1 if a target is missed."""
    policies = options.policies
    arms = resolve([policies] if isinstance(policies, str) else policies, options.config)
    if options.page_size > 1 and (options.capacity or 65_536) % options.page_size:
        raise cli.BenchError("--capacity must be a multiple of --page-size")
    rows = _replay(options, arms) if options.trace else _hold(options, arms)
    report.add_derived(rows)
    report.show(rows)
    targets = report.findings(rows)
    report.show_findings(targets)
    settings = {
        key: (value.name if key == "trace" and value else value)
        for key, value in vars(options).items()
        if key not in ("json", "plot")
    }
    if options.json:
        document = result.document("scheduling", settings, [*rows, *targets])
        result.write(options.json, document)
    if options.plot:
        report.plot(options.plot, rows)
    return int(options.full and any(t["met"] is False for t in targets))


def _hold(options: argparse.Namespace, arms: list[Arm]) -> list[dict[str, Any]]:
    """Queues held at a length, every workload, length and policy."""
    names = options.workloads
    queues = options.queues or (FULL_QUEUES if options.full else QUICK_QUEUES)
    plan = [
        (name, length, arm)
        for name, length, arm in itertools.product(names, queues, arms)
        if arm.name not in WHOLE_QUEUE
        or options.queues
        or length <= (WHOLE_QUEUE_LONG if options.full else WHOLE_QUEUE_QUICK)
        or (options.full and name == "shared")
    ]
    rows = []
    with progress.steps(len(plan)) as steps:
        for name, length, arm in plan:
            steps.start(f"{name}, {length} waiting, {arm.name}")
            # The same for every policy: hit ratios grow with the length of a run.
            wanted = options.admissions or (max(2000, length) if options.full else 200)

            def experiment(engine: Any) -> Any:
                return engine.keep_waiting(
                    shape(name, options.seed), length, wanted, max(100, length // 2)
                )

            capacity = options.capacity or CAPACITY[name]
            row = _run(options, arm, capacity, experiment)
            rows.append({"workload": name, "queue": length, "policy": arm.name, **row})
            steps.finish()
    return rows


def _replay(options: argparse.Namespace, arms: list[Arm]) -> list[dict[str, Any]]:
    """A trace at its arrival times, every policy."""
    limit = options.limit or (None if options.full else TRACE_REQUESTS)
    trace = read_trace(options.trace, limit)
    jobs = from_trace(trace, options.speed)
    rows = []
    with progress.steps(len(arms)) as steps:
        for arm in arms:
            steps.start(f"{trace.name}, {len(jobs)} requests, {arm.name}")
            row = _run(
                options,
                arm,
                options.capacity or TRACE_CAPACITY,
                lambda engine: engine.replay(jobs),
                budget=8192,
                prefill_tps=TRACE_PREFILL_TPS,
            )
            rows.append({"workload": trace.name, "queue": None, "policy": arm.name, **row})
            steps.finish()
    return rows


def _run(
    options: argparse.Namespace, arm: Arm, capacity: int, experiment: Any, **speed: Any
) -> dict[str, Any]:
    # Imported late: the options above answer --help without torch.
    from .engine import Engine, Speed
    from .world import world

    capacity -= capacity % options.page_size
    with world(
        arm,
        capacity=capacity,
        page_size=options.page_size,
        core="python" if options.eviction == "adaptive" else options.core,
        eviction=options.eviction,
    ) as made:
        gc.collect()
        return experiment(Engine(made, replace(Speed(), **speed))).row()


def _words(values: tuple[int, ...]) -> str:
    return ",".join(str(value) for value in values)
