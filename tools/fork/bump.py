# SPDX-License-Identifier: Apache-2.0
"""Re-anchors the patches onto another upstream release and reports what moved.

Nothing in the checkout changes unless every edit and module fits the new release, or the caller
says that the rest is wanted all the same.
"""

from __future__ import annotations

import ast
import json
import os
import re
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from fork.anchors import SourceFile, find_scope, resolve
from fork.edits import apply_edits, sha256_of
from fork.errors import ForkError
from fork.fetch import Log, fetch, pin_for_interpreter, run_pip
from fork.patches import Edit, Topic
from fork.plan import check_module, edits_by_file, read_pristine
from fork.rehash import rehashed, write_patches
from fork.repo import Repo, Upstream, WheelPin, render_upstream
from fork.wheel import pristine_dir, unpack

STATUSES = UNCHANGED, MOVED, FAILED = "unchanged", "moved", "failed"
# Added to a moved edit's lines where upstream's own code in `in` is no longer the same.
CHANGED = ", definition changed"
# Wheels of later releases may ask for another glibc than today's manylinux_2_34.
_GLIBC_MINORS = range(17, 46)
_LINUX = re.compile(r"manylinux(_\d+_\d+|\d+)_")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one edit or module fares on the new release.

    `status` is UNCHANGED (same file as before), MOVED (file differs, anchor found) or FAILED;
    `detail` has the lines, or the reason; `sha256` is the new file's, "" for a module or failure.
    """

    topic: str
    number: int
    what: str
    status: str
    detail: str
    sha256: str = ""


def find_wheels(current: Upstream, version: str, log: Log) -> Upstream:
    """Pins for `version` with the interpreters and machines of `current`, hashes from the index.

    Raises:
        ForkError: the index has no wheel of `version` for any of them.
    """
    with ThreadPoolExecutor(max_workers=3) as pool:
        answers = list(pool.map(lambda pin: _ask_index(current.name, version, pin), current.wheels))
    pins = []
    for pin, found in zip(current.wheels, answers, strict=True):
        if found:
            pins.append(found)
            log(f"{found.file} sha256 {found.sha256}")
        else:
            log(f"{version} has no wheel for {pin.tags}")
    if not pins:
        raise ForkError(
            f"the package index has no wheel of {current.name} {version}",
            remedy="check the version and pip's index settings",
        )
    return Upstream(current.name, version, "opt.1", tuple(pins))


def _ask_index(name: str, version: str, like: WheelPin) -> WheelPin | None:
    python_tag, _, platform = like.tags.split("-")
    machine = _LINUX.sub("", platform.split(".")[0])
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC_MINORS]
    try:
        with tempfile.TemporaryDirectory() as scratch:
            report = run_pip(
                "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps",
                "--only-binary=:all:", "--target", scratch, "--report", "-",
                "--implementation", python_tag[:2], "--python-version", python_tag[2:],
                *(part for platform in platforms for part in ("--platform", platform)),
                f"{name}=={version}",
            )  # fmt: skip
    except ForkError as error:
        if "No matching distribution" in error.problem:
            return None
        raise
    info = json.loads(report)["install"][0]["download_info"]
    return WheelPin(
        unquote(info["url"].rsplit("/", 1)[1]), info["archive_info"]["hashes"]["sha256"]
    )


def compare(repo: Repo, old: Path, new: Path, topics: Sequence[Topic]) -> list[Outcome]:
    """Tries every edit and module of `topics` on the release unpacked in `new`.

    Args:
        old: the release that is pinned today, for the lines where the edits go now.
    """
    outcomes = []
    for topic in topics:
        for edit in topic.edits:
            outcomes.append(_try_edit(old, new, edit))
        for module in topic.modules:
            try:
                check_module(repo, new, topic, module, {})
                outcomes.append(Outcome(topic.name, 0, module, UNCHANGED, "module"))
            except ForkError as error:
                outcomes.append(Outcome(topic.name, 0, module, FAILED, error.problem))
    return _try_together(new, topics, outcomes)


def _try_edit(old: Path, new: Path, edit: Edit) -> Outcome:
    what = f"{edit.file}: {edit.anchor}"
    try:
        data = read_pristine(new, edit.file, edit)
        apply_edits(edit.file, data, [edit], check_hash=False)
        row = resolve(SourceFile(data, edit.file), edit).row
    except ForkError as error:
        return Outcome(edit.topic, edit.number, what, FAILED, error.problem)
    digest = sha256_of(data)
    if digest == edit.sha256:
        return Outcome(edit.topic, edit.number, what, UNCHANGED, f"line {row + 1}", digest)
    source, before = (
        SourceFile(content, edit.file) for content in (data, read_pristine(old, edit.file, edit))
    )
    same = ast.dump(find_scope(source, edit)) == ast.dump(find_scope(before, edit))
    detail = f"line {resolve(before, edit).row + 1} -> {row + 1}" + ("" if same else CHANGED)
    return Outcome(edit.topic, edit.number, what, MOVED, detail, digest)


def _try_together(new: Path, topics: Sequence[Topic], outcomes: list[Outcome]) -> list[Outcome]:
    """Fails the edits of a file that fit one by one but not together."""
    broken: dict[str, str] = {}
    failed = {(o.topic, o.number) for o in outcomes if o.status == FAILED}
    for name, edits in edits_by_file(topics).items():
        fitting = [edit for edit in edits if (edit.topic, edit.number) not in failed]
        if not fitting:
            continue
        try:
            data = read_pristine(new, name, fitting[0])
            apply_edits(name, data, fitting, check_hash=False)
        except ForkError as error:
            broken[name] = error.problem
    files = {(e.topic, e.number): e.file for topic in topics for e in topic.edits}
    return [
        replace(outcome, status=FAILED, detail=broken[file], sha256="")
        if (file := files.get((outcome.topic, outcome.number))) in broken
        and outcome.status != FAILED
        else outcome
        for outcome in outcomes
    ]


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as aligned columns, failures last."""
    rows = [("status", "topic", "anchor", "where or why")]
    rows += [
        (outcome.status, outcome.topic, outcome.what, outcome.detail)
        for outcome in sorted(outcomes, key=lambda o: STATUSES.index(o.status))
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    )


def write_bump(repo: Repo, upstream: Upstream, outcomes: Sequence[Outcome]) -> None:
    """Pins `upstream` and writes the hashes of all edits that fit; texts are made before any write."""
    updates = {(o.topic, o.number): o.sha256 for o in outcomes if o.sha256}
    texts = rehashed(repo, updates)
    write_patches(repo, texts)
    scratch = repo.upstream_file.with_suffix(".toml.new")
    scratch.write_text(render_upstream(upstream), encoding="utf-8")
    os.replace(scratch, repo.upstream_file)


def unpack_release(repo: Repo, upstream: Upstream, wheel: Path | None, log: Log) -> Path:
    """Fetches and unpacks a release beside the pinned one."""
    pin = pin_for_interpreter(upstream)
    return unpack(fetch(upstream, pin, wheel=wheel, log=log), pristine_dir(repo, pin))
