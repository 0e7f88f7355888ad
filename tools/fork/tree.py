# SPDX-License-Identifier: Apache-2.0
"""Keeps an unpacked, edited tree whose added modules are links into the repository.

The tree may be in use while it is refreshed: a new one is built aside and renamed into place, an
existing one gets only the files that differ, each replaced in one step.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from fork.dist_info import dist_info_files, fork_dist_info, record_row, render_record
from fork.edits import sha256_of
from fork.errors import ForkError
from fork.plan import Plan
from fork.wheel import locked

STATE_FILE = ".fork-tree.json"


@dataclass(slots=True)
class State:
    """What the last run wrote: base release, hash of each written file, link targets."""

    base: str = ""
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, tree: Path) -> State:
        table = json.loads((tree / STATE_FILE).read_text(encoding="utf-8"))
        return cls(table["base"], table["files"], table["links"])

    def dump(self) -> bytes:
        table = {"base": self.base, "files": self.files, "links": self.links}
        return (json.dumps(table, indent=1, sort_keys=True) + "\n").encode()


@dataclass(frozen=True, slots=True)
class Change:
    """What a run did to the tree, as sorted paths."""

    written: tuple[str, ...]
    linked: tuple[str, ...]
    removed: tuple[str, ...]


def tree_metadata(plan: Plan) -> dict[str, bytes]:
    """A dist-info for the tree, so that a program that runs from it sees the fork's version.

    RECORD holds the dist-info only: the tree is not an installation and pip does not manage it.
    """
    files = dist_info_files(plan)
    rows = [record_row(path, data) for path, data in sorted(files.items())]
    record = f"{fork_dist_info(plan.upstream)}/RECORD"
    return {**files, record: render_record(rows, record)}


def develop(plan: Plan, tree: Path, *, metadata: bool, discard: bool = False) -> Change:
    """Makes or refreshes `tree` from `plan`.

    Args:
        metadata: put a dist-info beside the package. Not for the tree of an editable install,
            whose dist-info is in site-packages.
        discard: overwrite files that were changed by hand in the tree.

    Raises:
        ForkError: `tree` holds something that this did not make, or a hand-made change that would
            be lost. The tree is as before then.
    """
    tree = tree.absolute()
    files = {**plan.generated, **plan.edited, **(tree_metadata(plan) if metadata else {})}
    links = {
        name: os.path.relpath(path, (tree / name).parent) for name, path in plan.modules.items()
    }
    state = State(
        plan.pristine.name, {name: sha256_of(data) for name, data in files.items()}, links
    )
    with locked(tree.parent / f".{tree.name}.lock"):
        if not tree.exists():
            return _create(plan, tree, files, state)
        if not (tree / STATE_FILE).is_file():
            raise ForkError(
                "exists and is not a tree made by this command",
                where=str(tree),
                remedy="choose another --tree, or move that folder away",
            )
        last = State.read(tree)
        if not discard:
            _check_untouched(tree, last, files)
        if last.base != state.base:
            return _replace(plan, tree, files, state)
        return _refresh(plan, tree, files, state, last)


def _create(plan: Plan, tree: Path, files: dict[str, bytes], state: State) -> Change:
    scratch = Path(tempfile.mkdtemp(dir=tree.parent, prefix=f".{tree.name}-"))
    try:
        shutil.copytree(plan.pristine / plan.upstream.name, scratch / plan.upstream.name)
        for name, data in files.items():
            _write(scratch / name, data)
        for name, target in state.links.items():
            _link(scratch / name, target)
        _write(scratch / STATE_FILE, state.dump())
        os.chmod(scratch, 0o755)
        os.rename(scratch, tree)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Change(tuple(sorted(files)), tuple(sorted(state.links)), ())


def _replace(plan: Plan, tree: Path, files: dict[str, bytes], state: State) -> Change:
    old = Path(tempfile.mkdtemp(dir=tree.parent, prefix=f".{tree.name}-old-"))
    os.rename(tree, old / tree.name)
    try:
        return _create(plan, tree, files, state)
    except BaseException:
        os.rename(old / tree.name, tree)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _refresh(plan: Plan, tree: Path, files: dict[str, bytes], state: State, last: State) -> Change:
    removed = []
    for name in sorted(set(last.links) - set(state.links)):
        (tree / name).unlink(missing_ok=True)
        removed.append(name)
    for name in sorted(set(last.files) - set(files)):
        original = plan.pristine / name
        if original.is_file():
            _write(tree / name, original.read_bytes())
        else:
            (tree / name).unlink(missing_ok=True)
        removed.append(name)
    written = [name for name in sorted(files) if not _holds(tree / name, files[name])]
    for name in written:
        _write(tree / name, files[name])
    linked = [name for name in sorted(state.links) if not _points(tree / name, state.links[name])]
    for name in linked:
        _link(tree / name, state.links[name])
    _write(tree / STATE_FILE, state.dump())
    return Change(tuple(written), tuple(linked), tuple(removed))


def _check_untouched(tree: Path, last: State, files: dict[str, bytes]) -> None:
    for name, digest in last.files.items():
        path = tree / name
        if not path.is_file():
            continue
        data = path.read_bytes()
        if sha256_of(data) != digest and data != files.get(name):
            raise ForkError(
                "was changed by hand in the tree, and the change would be lost",
                where=str(path),
                remedy="move the change into a patch or into python/, or pass --discard",
            )


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


def _points(path: Path, target: str) -> bool:
    return path.is_symlink() and os.readlink(path) == target


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(data)
    if path.exists():
        shutil.copymode(path, scratch)
    os.replace(scratch, path)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    os.symlink(target, scratch)
    if path.is_dir() and not path.is_symlink():
        # The package was linked file by file before; a rename replaces no folder.
        shutil.rmtree(path)
    os.replace(scratch, path)
