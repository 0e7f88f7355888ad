# SPDX-License-Identifier: Apache-2.0
"""Reads `patches/`: one TOML file a topic, in the order of `patches/series`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from fork.errors import ForkError, raise_all
from fork.repo import Repo, read_toml, reject_unknown, require_text

TOPIC_KEYS = ("title", "why", "forwarded", "retire_when", "modules", "tests", "edit")
EDIT_KEYS = ("file", "sha256", "in", "at", "statement", "occurrence", "lines")
PLACES = ("start", "end", "before", "after")
_OCCURRENCE = re.compile(r"([1-9]\d*)/([1-9]\d*)")
_TOPIC_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


@dataclass(frozen=True, slots=True)
class Edit:
    """One insertion into an upstream file.

    `scope` is the qualified name of a definition ("" for the module); `place` is one of
    `PLACES`; `statement` narrows to one statement inside the scope; `occurrence` is
    (which, of how many) among statements that are alike. `sha256` is "" where not filled in.
    """

    topic: str
    number: int
    file: str
    sha256: str
    scope: str
    place: str
    statement: str
    occurrence: tuple[int, int]
    lines: str

    @property
    def where(self) -> str:
        return f"patches/{self.topic}.toml edit {self.number}, {self.file}"

    @property
    def anchor(self) -> str:
        scope = f"in '{self.scope}'" if self.scope else "in the module"
        target = f" '{self.statement}'" if self.statement else ""
        which, total = self.occurrence
        nth = f" ({which} of {total})" if total > 1 else ""
        return f"{scope}, {self.place}{target}{nth}"


@dataclass(frozen=True, slots=True)
class Topic:
    """One patch: why it exists, its edits, the modules it adds and the tests that go with it."""

    name: str
    title: str
    why: str
    forwarded: str
    retire_when: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    edits: tuple[Edit, ...]

    @property
    def where(self) -> str:
        return f"patches/{self.name}.toml"


def read_series(repo: Repo) -> list[str]:
    """Topic names of `patches/series` in order; blank lines and `#` comments are skipped.

    Raises:
        ForkError: the file is missing, or a name stands twice or is not a topic name.
    """
    try:
        text = repo.series.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ForkError("no such file", where="patches/series") from None
    names: list[str] = []
    for raw in text.splitlines():
        name = raw.split("#", 1)[0].strip()
        if not name:
            continue
        if not _TOPIC_NAME.fullmatch(name):
            raise ForkError(
                f"{name!r} is not a topic name",
                where="patches/series",
                remedy="a topic name is the patch file's name without .toml: a-z, 0-9 and '-'",
            )
        if name in names:
            raise ForkError(f"{name!r} stands twice", where="patches/series")
        names.append(name)
    return names


def unlisted(repo: Repo, names: Sequence[str]) -> list[str]:
    """Topics that have a file in `patches/` but are not among `names`, sorted."""
    return sorted(path.stem for path in repo.patches.glob("*.toml") if path.stem not in names)


def read_topics(repo: Repo, names: Sequence[str]) -> list[Topic]:
    """Parses the topics `names`, reporting the problems of all of them at once.

    Raises:
        ForkError: a topic has no file, or a file breaks the format `patches/README.md` describes.
    """
    topics: list[Topic] = []
    problems: list[ForkError] = []
    for name in names:
        path = repo.patches / f"{name}.toml"
        if not path.is_file():
            problems.append(
                ForkError(
                    f"topic {name!r} has no file patches/{name}.toml",
                    where="patches/series",
                    remedy="add the file or take the line out",
                )
            )
            continue
        try:
            topics.append(parse_topic(name, read_toml(path)))
        except ForkError as error:
            problems.append(error)
    raise_all(problems)
    return topics


def parse_topic(name: str, table: Mapping[str, Any]) -> Topic:
    """Checks one parsed patch file. Raises ForkError naming the file, the key and what is allowed."""
    where = f"patches/{name}.toml"
    reject_unknown(table, TOPIC_KEYS, where)
    title, why, forwarded, retire_when = (require_text(table, key, where) for key in TOPIC_KEYS[:4])
    if "\n" in title.strip():
        raise ForkError("title must be one line", where=where)
    modules = _paths(table, "modules", "sglang/", where)
    tests = _paths(table, "tests", "tests/", where)
    entries = table.get("edit", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ForkError("edits are written as [[edit]] tables", where=where)
    edits = tuple(_parse_edit(name, number, entry) for number, entry in enumerate(entries, 1))
    if not modules and not edits:
        raise ForkError("adds no module and makes no edit", where=where)
    return Topic(name, title.strip(), why, forwarded, retire_when, modules, tests, edits)


def _paths(table: Mapping[str, Any], key: str, prefix: str, where: str) -> tuple[str, ...]:
    values = table.get(key, [])
    if not isinstance(values, list):
        raise ForkError(f"{key} must be a list of paths, not {values!r}", where=where)
    for value in values:
        if not isinstance(value, str) or not _is_clean(value, prefix):
            raise ForkError(
                f"{key}: {value!r} must be a relative path below {prefix} without '..'", where=where
            )
    return tuple(value.rstrip("/") for value in values)


def _is_clean(path: str, prefix: str) -> bool:
    pure = PurePosixPath(path)
    return path.startswith(prefix) and ".." not in pure.parts and str(pure) == path.rstrip("/")


def _parse_edit(topic: str, number: int, table: Mapping[str, Any]) -> Edit:
    where = f"patches/{topic}.toml edit {number}"
    reject_unknown(table, EDIT_KEYS, where)
    file = require_text(table, "file", where)
    if not _is_clean(file, "sglang/") or not file.endswith(".py"):
        raise ForkError(
            f"file {file!r} must be a Python file of the wheel, sglang/...", where=where
        )
    if not isinstance(table.get("in"), str):
        raise ForkError(
            'needs `in`, the qualified name of a definition ("" for the module)', where=where
        )
    place = require_text(table, "at", where)
    if place not in PLACES:
        raise ForkError(f"at is {place!r}", where=where, remedy=f"allowed: {', '.join(PLACES)}")
    for key in ("sha256", "statement"):
        if not isinstance(table.get(key, ""), str):
            raise ForkError(f"{key} must be a string, not {table[key]!r}", where=where)
    return Edit(
        topic=topic,
        number=number,
        file=file,
        sha256=table.get("sha256", ""),
        scope=table["in"].strip(),
        place=place,
        statement=" ".join(table.get("statement", "").split()),
        occurrence=_parse_occurrence(table.get("occurrence", 1), where),
        lines=require_text(table, "lines", where),
    )


def _parse_occurrence(value: object, where: str) -> tuple[int, int]:
    if value == 1 and not isinstance(value, bool):
        return (1, 1)
    match = _OCCURRENCE.fullmatch(value) if isinstance(value, str) else None
    if not match or int(match[1]) > int(match[2]):
        raise ForkError(
            f"occurrence is {value!r}",
            where=where,
            remedy='write "K/N": the K-th of exactly N statements, such as "1/2"',
        )
    return (int(match[1]), int(match[2]))
