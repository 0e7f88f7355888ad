# SPDX-License-Identifier: Apache-2.0
"""Command line: `python -m fork fetch|check|build|develop|export|bump`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fork.bump import FAILED, STATUSES, compare, find_wheels, table, unpack_release, write_bump
from fork.errors import ForkError
from fork.export import export_series, exported_tests
from fork.fetch import fetch
from fork.patches import Topic, unlisted
from fork.plan import check_listed, hashes_to_update, make_plan, select_topics
from fork.rehash import rehashed, write_patches
from fork.repo import Repo, find_repo
from fork.tree import develop
from fork.wheel import write_wheel
from fork.work import editable_tree, obtain, strict_plan


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; 0 on success, 1 with the problem on standard error otherwise."""
    options = _parser().parse_args(arguments)
    try:
        repo = find_repo(options.repo)
        options.run(repo, options)
    except (ForkError, OSError) as error:
        print(f"fork: {error}", file=sys.stderr)
        return 1
    return 0


def say(text: str) -> None:
    print(f"fork: {text}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fork", description=__doc__)
    parser.add_argument(
        "--repo", type=Path, metavar="DIR", help="checkout of the fork (default: found upwards)"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: object, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        command.add_argument(
            "--wheel",
            type=Path,
            metavar="FILE",
            help="the release's wheel, instead of the package index (its hash is checked)",
        )
        return command

    add("fetch", _fetch, "download the pinned release and unpack it below build/upstream/")
    check = add("check", _check, "verify patches and modules against the release; write nothing")
    check.add_argument(
        "--update-hashes",
        action="store_true",
        help="write the hashes of the release's files into edits that have none or another",
    )
    tree = add("develop", _develop, "make or refresh an edited tree with links to python/")
    tree.add_argument(
        "--tree",
        type=Path,
        metavar="DIR",
        help="a tree of its own to run with PYTHONPATH=DIR (default: the editable install's)",
    )
    tree.add_argument(
        "--discard", action="store_true", help="overwrite files changed by hand in the tree"
    )
    build = add("build", _build, "pack the fork's wheel for this interpreter")
    build.add_argument(
        "--output", type=Path, metavar="DIR", help="folder for the wheel (default: dist/)"
    )
    export = add("export", _export, "write the topics as a git series against upstream's layout")
    export.add_argument(
        "--output", type=Path, metavar="DIR", help="folder for the patches (default: build/export/)"
    )
    bump = add("bump", _bump, "re-anchor the patches onto another release and report what moved")
    bump.add_argument("version", help="the release, for example 0.5.24")
    bump.add_argument("--dry-run", action="store_true", help="report only; write nothing")
    bump.add_argument(
        "--partial",
        action="store_true",
        help="pin the release although some edits fail; theirs keep their old hashes",
    )
    for command in (check, tree, bump):
        command.add_argument(
            "--also",
            action="append",
            default=[],
            metavar="TOPIC",
            help="a topic to take although patches/series does not list it yet (repeatable)",
        )
    return parser


def _fetch(repo: Repo, options: argparse.Namespace) -> None:
    upstream, pin, pristine = obtain(repo, options.wheel, log=say)
    path = fetch(upstream, pin, wheel=options.wheel, log=say)
    say(f"{path} (sha256 {pin.sha256})")
    say(f"unpacked in {pristine.relative_to(repo.root)}")


def _check(repo: Repo, options: argparse.Namespace) -> None:
    upstream, _, pristine = obtain(repo, options.wheel, log=say)
    topics = select_topics(repo, options.also)
    if options.update_hashes:
        updates = hashes_to_update(pristine, topics)
        write_patches(repo, rehashed(repo, updates))
        for (name, number), digest in updates.items():
            say(f"patches/{name}.toml edit {number}: sha256 = {digest}")
        topics = select_topics(repo, options.also)
    try:
        check_listed(repo, topics)
        for topic in topics:
            list(exported_tests(repo, topic))
    except ForkError as error:
        if not options.also:  # with --also the series is known to be unfinished
            raise
        say(f"not finished: {error}")
    plan = make_plan(repo, upstream, pristine, topics)
    say(
        f"{upstream.name} {upstream.fork_version}: {_summary(topics)}, "
        f"{len(plan.edited)} upstream files, {len(plan.added_files())} added files: all apply"
    )


def _summary(topics: Sequence[Topic]) -> str:
    return f"{len(topics)} topics, {sum(len(topic.edits) for topic in topics)} edits"


def _develop(repo: Repo, options: argparse.Namespace) -> None:
    upstream, pin, pristine = obtain(repo, options.wheel, log=say)
    topics = select_topics(repo, options.also)
    for name in unlisted(repo, [topic.name for topic in topics]):
        say(f"patches/{name}.toml is not in patches/series: left out (--also {name} takes it)")
    plan = make_plan(repo, upstream, pristine, topics)
    tree = options.tree or editable_tree(repo, pin)
    change = develop(plan, tree, metadata=options.tree is not None, discard=options.discard)
    for verb, names in (
        ("wrote", change.written), ("linked", change.linked), ("took back", change.removed)
    ):  # fmt: skip
        for name in names:
            say(f"{verb} {name}")
    say(f"{tree}: {upstream.name} {upstream.fork_version}, {_summary(topics)}")
    if options.tree is not None:
        say(f"run from it with PYTHONPATH={tree}")


def _build(repo: Repo, options: argparse.Namespace) -> None:
    upstream, pin, pristine = obtain(repo, options.wheel, log=say)
    plan = strict_plan(repo, upstream, pristine)
    folder = options.output or repo.root / "dist"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = fetch(upstream, pin, wheel=options.wheel, log=say)
    say(f"packing {_summary(plan.topics)}")
    say(f"wrote {write_wheel(plan, pin, wheel, folder)}")


def _export(repo: Repo, options: argparse.Namespace) -> None:
    upstream, _, pristine = obtain(repo, options.wheel, log=say)
    plan = strict_plan(repo, upstream, pristine)
    folder = options.output or repo.build / "export"
    for path in export_series(repo, upstream, pristine, plan.topics, folder):
        say(f"wrote {path}")
    say(f"in a checkout of upstream at v{upstream.version}: git am {folder}/*.patch")


def _bump(repo: Repo, options: argparse.Namespace) -> None:
    current, _, old = obtain(repo, None, log=say)
    topics = select_topics(repo, options.also)
    make_plan(repo, current, old, topics)  # a series that is broken already says so here
    target = find_wheels(current, options.version, say)
    outcomes = compare(repo, old, unpack_release(repo, target, options.wheel, say), topics)
    print(table(outcomes), flush=True)
    counts = Counter(outcome.status for outcome in outcomes)
    say(", ".join(f"{counts[status]} {status}" for status in STATUSES))
    failed = counts[FAILED]
    if options.dry_run:
        say("dry run: nothing was written")
    elif failed and not options.partial:
        raise ForkError(
            f"{failed} of {len(outcomes)} do not fit {target.version}; nothing was written",
            remedy="re-anchor those edits (--partial pins the release first, so that "
            "`check` and `develop` work on it)",
        )
    else:
        write_bump(repo, target, outcomes)
        say(f"pinned {target.name} {target.fork_version}")
