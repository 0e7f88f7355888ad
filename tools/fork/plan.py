# SPDX-License-Identifier: Apache-2.0
"""The whole result in memory: which files the fork changes and adds, before any is written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fork.edits import apply_edits, sha256_of
from fork.errors import ForkError, raise_all
from fork.patches import Edit, Topic, read_series, read_topics, unlisted
from fork.repo import Repo, Upstream

VERSION_FILE = "sglang/_version.py"
# Never part of a distribution, wherever they lie below python/.
_SKIPPED_NAMES = {"__pycache__", ".DS_Store"}
_SKIPPED_SUFFIXES = {".pyc", ".pyo"}


@dataclass(frozen=True, slots=True)
class Plan:
    """What the fork makes of one unpacked release.

    `edited` holds the new bytes of upstream files, `modules` the added paths (a file or a folder,
    relative to `python/`) and where they lie in the repository. All paths use `/`.
    """

    repo: Repo
    upstream: Upstream
    pristine: Path
    topics: tuple[Topic, ...]
    edited: dict[str, bytes]
    modules: dict[str, Path]

    @property
    def generated(self) -> dict[str, bytes]:
        """Files of the import package that the build itself writes."""
        return {VERSION_FILE: version_module(self.upstream)}

    def added_files(self) -> dict[str, Path]:
        """Every file of the added modules: path in the wheel -> file in the repository."""
        return {
            name: path for module in self.modules for name, path in module_files(self.repo, module)
        }


def select_topics(repo: Repo, also: Sequence[str] = ()) -> list[Topic]:
    """The topics of the series, then those named in `also` that are not listed yet."""
    names = read_series(repo)
    return read_topics(repo, [*names, *(name for name in also if name not in names)])


def check_listed(repo: Repo, topics: Sequence[Topic]) -> None:
    """Raises for patch files outside the series and for files below python/ outside any module."""
    names = [topic.name for topic in topics]
    problems = [
        ForkError(
            "not listed in patches/series",
            where=f"patches/{name}.toml",
            remedy="add the topic's line, or pass --also to try it unlisted",
        )
        for name in unlisted(repo, names)
    ]
    modules = [module for topic in topics for module in topic.modules]
    stray: dict[str, list[str]] = defaultdict(list)
    for path in python_files(repo):
        if not any(path == module or path.startswith(f"{module}/") for module in modules):
            folder, _, name = path.rpartition("/")
            stray[folder].append(name)
    problems += [
        ForkError(
            f"no topic claims {', '.join(names)}",
            where=f"python/{folder}",
            remedy="add the package, or each file, to `modules` of its patch",
        )
        for folder, names in stray.items()
    ]
    raise_all(problems)


def make_plan(
    repo: Repo,
    upstream: Upstream,
    pristine: Path,
    topics: Sequence[Topic],
    *,
    check_hash: bool = True,
) -> Plan:
    """Applies all edits of `topics` and checks the added modules.

    Raises:
        ForkError: anything at all is wrong; all problems are reported together.
    """
    problems: list[ForkError] = []
    edited: dict[str, bytes] = {}
    for name, edits in edits_by_file(topics).items():
        try:
            data = read_pristine(pristine, name, edits[0])
            edited[name] = apply_edits(name, data, edits, check_hash=check_hash)
        except ForkError as error:
            problems += getattr(error, "problems", [error])
    modules: dict[str, Path] = {}
    claimed: dict[str, str] = {}
    for topic in topics:
        for module in topic.modules:
            try:
                check_module(repo, pristine, topic, module, claimed)
                modules[module] = repo.python / module
                claimed[module] = topic.name
            except ForkError as error:
                problems.append(error)
    raise_all(problems)
    return Plan(repo, upstream, pristine, tuple(topics), edited, modules)


def edits_by_file(topics: Iterable[Topic]) -> dict[str, list[Edit]]:
    """All edits of a file together, in the order of the series."""
    found: dict[str, list[Edit]] = defaultdict(list)
    for topic in topics:
        for edit in topic.edits:
            found[edit.file].append(edit)
    return found


def read_pristine(pristine: Path, name: str, edit: Edit) -> bytes:
    """Bytes of an upstream file; ForkError where the release has no such file."""
    if name == VERSION_FILE:
        raise ForkError("this file is written by the build", where=edit.where)
    path = pristine / name
    if not path.is_file():
        raise ForkError(
            "upstream has no such file",
            where=edit.where,
            anchor=edit.anchor,
            remedy="find where upstream moved it, and write its new path as `file`",
        )
    return path.read_bytes()


def python_files(repo: Repo) -> Iterator[str]:
    """Every file below python/, as paths relative to it, without what Python itself leaves."""
    yield from (name for name, _ in files_below(repo.python, repo.python))


def module_files(repo: Repo, module: str) -> Iterator[tuple[str, Path]]:
    """Files of one added module: path in the wheel and file in the repository."""
    path = repo.python / module
    if path.is_file():
        yield module, path
    else:
        yield from files_below(path, repo.python)


def files_below(folder: Path, base: Path) -> Iterator[tuple[str, Path]]:
    """Files in `folder`, sorted: path relative to `base` and path; without caches of Python's."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(base)
        skipped = _SKIPPED_NAMES.intersection(name.parts) or path.suffix in _SKIPPED_SUFFIXES
        if path.is_file() and not skipped:
            yield name.as_posix(), path


def check_module(
    repo: Repo, pristine: Path, topic: Topic, module: str, claimed: Mapping[str, str]
) -> None:
    """Checks that an added module exists, is claimed once and takes no name of upstream's.

    Args:
        claimed: modules of other topics so far, with the topic's name.

    Raises:
        ForkError: one of these does not hold.
    """
    where = f"patches/{topic.name}.toml, module {module}"
    path = repo.python / module
    if not path.exists():
        raise ForkError(
            f"no such file or folder python/{module}", where=where, remedy="correct the path"
        )
    for other, owner in claimed.items():
        if f"{module}/".startswith(f"{other}/") or f"{other}/".startswith(f"{module}/"):
            raise ForkError(
                f"{other} is claimed by topic {owner!r} already",
                where=where,
                remedy="a module belongs to one topic",
            )
    stem = (pristine / module).with_suffix("")
    for taken in (pristine / module, stem, stem.with_suffix(".py")):
        if taken.exists():
            raise ForkError(
                f"collides with upstream's {taken.relative_to(pristine).as_posix()}",
                where=where,
                remedy="choose another name, or list single files inside upstream's package",
            )
    for parent in (pristine / module).parents:
        if parent.is_file():
            raise ForkError(f"{parent.name} is a file upstream", where=where, remedy="move it")


def hashes_to_update(pristine: Path, topics: Iterable[Topic]) -> dict[tuple[str, int], str]:
    """(topic, edit number) -> the file's SHA-256, for edits that have another or none."""
    updates = {}
    for topic in topics:
        for edit in topic.edits:
            actual = sha256_of(read_pristine(pristine, edit.file, edit))
            if edit.sha256 != actual:
                updates[topic.name, edit.number] = actual
    return updates


def version_module(upstream: Upstream) -> bytes:
    """`sglang/_version.py`, which `sglang.version` reads, with the fork's version in it."""
    numbers = ", ".join(
        part if part.isdigit() else repr(part) for part in upstream.version.split(".")
    )
    return (
        "# SPDX-License-Identifier: Apache-2.0\n"
        "# Written by the fork's build from UPSTREAM.toml.\n"
        f'__version__ = version = "{upstream.fork_version}"\n'
        f'__version_tuple__ = version_tuple = ({numbers}, "{upstream.local}")\n'
        "__commit_id__ = commit_id = None\n"
    ).encode()
