# SPDX-License-Identifier: Apache-2.0
"""The command line of ``bench_eviction.py``."""

from __future__ import annotations

import argparse
import gc
import logging
from typing import Any

from common import cli, progress, result, table

from . import policies, report
from .optimum import optimum
from .readers import read_trace
from .trace import Trace
from .workloads import WORKLOADS, workload

EPILOG = """\
One token of the tree stands for one block of the trace (512 tokens in Mooncake traces
and the built-in workloads, 16 in Qwen-Bailian traces), so capacities are in blocks.
LRU (Rust core, whole leaves) and the offline optimum are always included, since the
"gap closed" column is the share of the way from the one to the other.

examples:
  %(prog)s                                   all built-in workloads, small
  %(prog)s --trace conversation.jsonl --capacity 2000,5000,10000
  %(prog)s --policies lru,lru@python,adaptive --workloads agent-fleet --full
  %(prog)s --scale --json scale.json --plot scale.png
"""

QUICK_REQUESTS = 800
FULL_REQUESTS = 4000
QUICK_CAPACITIES = [250, 500]
FULL_CAPACITIES = [125, 250, 500, 1000, 2000]
# Shares of a trace's distinct blocks, for traces without --capacity.
TRACE_SHARES = {False: (0.02, 0.05, 0.1), True: (0.01, 0.02, 0.05, 0.1, 0.2)}
# Steps of progress for one trace and capacity.
PARTS = 10
SCALE_LEAVES = [1_000, 10_000, 100_000]
# Without --policies: the reference baselines rescan all leaves and are slow at scale.
SCALE_POLICIES = ["lru", "lru@python", "lru-trim", "weighted", "adaptive"]


def arguments() -> argparse.ArgumentParser:
    """The parser of ``bench_eviction.py``."""
    parser = cli.parser(
        "Replay request traces through the radix cache under eviction policies.", EPILOG
    )
    what = parser.add_argument_group("what to replay")
    what.add_argument(
        "--trace",
        type=cli.input_file,
        action="append",
        default=[],
        metavar="FILE",
        help="Mooncake or Qwen-Bailian trace (.jsonl, .jsonl.gz); may be repeated",
    )
    what.add_argument(
        "--workloads",
        type=cli.words_of("workload", WORKLOADS),
        metavar="LIST",
        default=list(WORKLOADS),
        help="built-in workloads, used where no --trace is given",
    )
    what.add_argument("--limit", type=cli.positive, metavar="N", help="only the first N requests")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--capacity",
        type=cli.positive_list,
        metavar="LIST",
        help="pool sizes in blocks, e.g. 2000,5000 (or 2k,5k)",
    )
    how.add_argument(
        "--policies",
        type=cli.comma_list,
        metavar="LIST",
        help="names, name@core, or groups: " + ", ".join(policies.GROUPS),
    )
    how.add_argument(
        "--policy-config",
        type=cli.named_json_object,
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="configuration of one policy, as --radix-eviction-policy-config takes it",
    )
    how.add_argument(
        "--page-size", type=cli.positive, default=1, metavar="N", help="blocks in a page"
    )
    how.add_argument(
        "--scale",
        action="store_true",
        help="measure evict(16 tokens) at growing numbers of leaves instead",
    )
    how.add_argument(
        "--leaves",
        type=cli.positive_list,
        metavar="LIST",
        default=SCALE_LEAVES,
        help="numbers of leaves for --scale",
    )
    cli.add_output_options(parser)
    parser.add_argument(
        "--markdown",
        type=cli.output_file(".md"),
        metavar="FILE",
        help="append the tables, with the command, to this file",
    )
    return parser


def run(options: argparse.Namespace) -> None:
    """Carry out one invocation.

    Raises:
        BenchError: wrong input.
    """
    configs = dict(options.policy_config)
    words = options.policies or (SCALE_POLICIES if options.scale else ["all"])
    chosen = policies.resolve(words, configs)
    # The optimum is no tree, and it is computed for every cell anyway.
    chosen = _with_baseline([policy for policy in chosen if not policy.is_optimum])
    cells = [] if options.scale else _cells(options)
    _prepare_sglang(chosen)
    if options.scale:
        rows = run_scale(chosen, options.leaves)
        tables = report.scale_tables(rows)
    else:
        rows = run_replays(cells, chosen, options.page_size)
        tables = report.replay_tables(rows)
    for title, columns, content in tables:
        table.show(title, columns, content)
    if options.markdown is not None:
        result.append_markdown(options.markdown, tables)
    if options.json is not None:
        result.write(options.json, result.document("eviction", _settings(options), rows))
    if options.plot is not None:
        (report.plot_scale if options.scale else report.plot_hits)(options.plot, rows)


def run_scale(chosen: list[policies.Policy], leaves: list[int]) -> list[report.Row]:
    """Rows of the scale table."""
    from .scale import evict_cost

    _forget_imports()
    rows = []
    with progress.steps(len(chosen) * len(leaves)) as bar:
        for policy in chosen:
            for count in leaves:
                bar.start(f"{policy.name}, {count:,} leaves")
                gc.collect()
                rows.append(evict_cost(policy, count))
                bar.finish()
    report.complete_scale(rows)
    return rows


def run_replays(
    cells: list[tuple[Trace, int]], chosen: list[policies.Policy], page_size: int
) -> list[report.Row]:
    """Rows of the replay tables, derived columns included."""
    from .driver import replay_in_turns

    _forget_imports()
    rows = []
    with progress.steps(len(cells) * (PARTS + 1)) as bar:
        for trace, capacity in cells:
            gc.collect()
            parts = replay_in_turns(trace, chosen, capacity, page_size, PARTS)
            for part in range(PARTS):
                bar.start(f"{trace.name}, {capacity:,} blocks: requests, part {part + 1}")
                outcomes = next(parts)
                bar.finish()
            del parts  # with its caches
            rows += [
                report.outcome_row(trace, policy, capacity, outcome)
                for policy, outcome in zip(chosen, outcomes, strict=True)
            ]
            bar.start(f"{trace.name}, {capacity:,} blocks: optimum")
            bound = optimum(trace, capacity, page_size)
            rows.append(report.bound_row(trace, capacity, bound))
            bar.finish()
    report.complete(rows)
    return rows


def _cells(options: argparse.Namespace) -> list[tuple[Trace, int]]:
    return [
        (trace, capacity) for trace in _traces(options) for capacity in _capacities(options, trace)
    ]


def _traces(options: argparse.Namespace) -> list[Trace]:
    if options.trace:
        return [read_trace(path, options.limit) for path in options.trace]
    count = options.limit or (FULL_REQUESTS if options.full else QUICK_REQUESTS)
    return [workload(name, count, options.seed) for name in options.workloads]


def _capacities(options: argparse.Namespace, trace: Trace) -> list[int]:
    page = options.page_size
    if options.capacity:
        odd = [size for size in options.capacity if size % page]
        if odd:
            raise cli.BenchError(f"--capacity {odd[0]} is not a multiple of --page-size {page}")
        return list(options.capacity)
    if options.trace:
        footprint = trace.footprint()
        sizes = [int(share * footprint) for share in TRACE_SHARES[options.full]]
    else:
        sizes = FULL_CAPACITIES if options.full else QUICK_CAPACITIES
    return sorted({max(1, size // page) * page for size in sizes})


def _with_baseline(chosen: list[policies.Policy]) -> list[policies.Policy]:
    if any(policy.name == policies.BASELINE for policy in chosen):
        return chosen
    return [*policies.resolve([policies.BASELINE], {}), *chosen]


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    names = ("full", "seed", "limit", "capacity", "policies", "page_size", "scale")
    settings = {name: getattr(options, name) for name in names}
    settings["leaves"] = options.leaves if options.scale else None
    settings["traces"] = [path.name for path in options.trace]
    settings["workloads"] = None if options.trace or options.scale else options.workloads
    settings["policy_config"] = dict(options.policy_config)
    return settings


def _forget_imports() -> None:
    """Spare garbage collections the objects of the imports, as a server does.

    Walking those takes a second or two, which would fall on some replays only.
    """
    gc.collect()
    gc.freeze()


def _prepare_sglang(chosen: list[policies.Policy]) -> None:
    """One thread, as the clock counts one; no start-up message for each cache.

    Also builds each policy once, so that a wrong configuration is told at once and
    not after all that comes before it in the run.

    Raises:
        BenchError: there is no sglang, or a policy rejects its configuration.
    """
    progress.note("loading sglang")
    try:
        import sglang.srt.mem_cache.unified_radix_cache  # noqa: F401
        import torch
    except ImportError as error:
        raise cli.BenchError(
            f"sglang cannot be imported ({error}); install this repository first: make venv"
        ) from error
    torch.set_num_threads(1)
    logging.getLogger("sglang").setLevel(logging.WARNING)

    from .driver import Replay

    for policy in chosen:
        try:
            Replay(policy, capacity=1, block_tokens=512, page_size=1)
        except (ImportError, RuntimeError, TypeError, ValueError) as error:
            raise cli.BenchError(f"policy {policy.name}: {error}") from error
