# SPDX-License-Identifier: Apache-2.0
"""Applies edits to one file: resolve all against the pristine bytes, insert, compile."""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence

from fork.anchors import Insertion, SourceFile, resolve
from fork.errors import ForkError, raise_all
from fork.patches import Edit


def sha256_of(data: bytes) -> str:
    """SHA-256 as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def apply_edits(name: str, data: bytes, edits: Sequence[Edit], *, check_hash: bool = True) -> bytes:
    """The file `name` (its pristine bytes are `data`) with all `edits` in it.

    Every edit is resolved against the pristine file; those at one place follow each other in the
    order given. Every line of `data` is in the result, unchanged and in order.

    Args:
        check_hash: refuse an edit written against other bytes. `bump` looks at those it refuses.

    Raises:
        ForkError: a hash, an anchor or the compilation of the result is wrong. Nothing is returned
            then, whichever edit was at fault.
    """
    problems: list[ForkError] = []
    source = SourceFile(data, name)
    placed: list[tuple[Edit, Insertion, list[bytes]]] = []
    for edit in edits:
        try:
            if check_hash:
                _check_hash(edit, source, data)
            place = resolve(source, edit)
            block = render(edit, place.indent, source.newline)
            _check_not_applied(edit, source, place, block)
            placed.append((edit, place, block))
        except ForkError as error:
            problems.append(error)
    raise_all(problems)
    _check_no_twins(placed)
    result = _insert(source, placed)
    if not _compiles(name, result):
        _blame(name, source, placed, result)
    return result


def render(edit: Edit, indent: str, newline: bytes) -> list[bytes]:
    """The edit's lines with `indent` before each; lines inside a multi-line string stay put.

    Raises:
        ForkError: the lines are not whole statements on their own.
    """
    text = edit.lines.rstrip("\n") + "\n" if edit.lines.strip() else ""
    trailing = len(edit.lines) - len(edit.lines.rstrip("\n")) - 1
    try:
        ast.parse(text)
        inside = _rows_inside_strings(text)
    except (SyntaxError, tokenize.TokenError) as error:
        raise ForkError(
            f"the lines are not whole statements: {error}",
            where=edit.where,
            anchor=edit.anchor,
            remedy="write complete statements, indented from column 0; the place's own "
            "indentation is added",
        ) from None
    rows = []
    for row, line in enumerate(text.split("\n")[:-1] + [""] * max(0, trailing)):
        if row not in inside:
            line = f"{indent}{line}".rstrip()
        rows.append(line.encode() + newline)
    return rows


def _rows_inside_strings(text: str) -> set[int]:
    rows: set[int] = set()
    stack: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "STRING":
            rows.update(range(token.start[0], token.end[0]))
        elif kind in ("FSTRING_START", "TSTRING_START"):
            stack.append(token.start[0])
        elif kind in ("FSTRING_END", "TSTRING_END"):
            rows.update(range(stack.pop(), token.end[0]))
    return rows


def _check_hash(edit: Edit, source: SourceFile, data: bytes) -> None:
    actual = sha256_of(data)
    if edit.sha256 == actual:
        return
    if not edit.sha256:
        raise ForkError(
            f"no sha256; the file's is {actual}",
            where=edit.where,
            anchor=edit.anchor,
            remedy="fill it in with `python -m fork check --update-hashes`",
        )
    try:
        place = resolve(source, edit)
        _check_not_applied(edit, source, place, render(edit, place.indent, source.newline))
    except ForkError as error:
        if "already applied" in error.problem:
            raise
    raise ForkError(
        f"pre-image changed: the edit was written against sha256 {edit.sha256[:12]}..., "
        f"the file is {actual[:12]}...",
        where=edit.where,
        anchor=edit.anchor,
        remedy="read what upstream changed around the anchor, then re-anchor with "
        "`python -m fork bump VERSION` (or `check --update-hashes` for this release)",
    )


def _check_not_applied(
    edit: Edit, source: SourceFile, place: Insertion, block: Sequence[bytes]
) -> None:
    ours = [line.rstrip() for line in block if line.strip()]
    above = [line.rstrip() for line in source.lines[: place.row] if line.strip()]
    below = [line.rstrip() for line in source.lines[place.row :] if line.strip()]
    if above[-len(ours) :] == ours or below[: len(ours)] == ours:
        raise ForkError(
            f"already applied: these lines stand at line {place.row + 1} of the file",
            where=edit.where,
            anchor=edit.anchor,
            remedy="start from the pristine release (`python -m fork fetch`); if upstream took "
            "the change, retire the edit",
        )


def _check_no_twins(placed: Sequence[tuple[Edit, Insertion, list[bytes]]]) -> None:
    seen: dict[tuple[int, bytes], Edit] = {}
    for edit, place, block in placed:
        first = seen.setdefault((place.row, b"".join(block).strip()), edit)
        if first is not edit:
            raise ForkError(
                f"inserts the same lines at the same place as {first.where}",
                where=edit.where,
                anchor=edit.anchor,
                remedy="keep the edit in one topic",
            )


def _insert(source: SourceFile, placed: Iterable[tuple[Edit, Insertion, list[bytes]]]) -> bytes:
    at: dict[int, list[bytes]] = defaultdict(list)
    for _, place, block in placed:
        at[place.row] += block
    out: list[bytes] = []
    for row, line in enumerate(source.lines):
        out += at.get(row, [])
        out.append(line)
    tail = at.get(len(source.lines), [])
    if tail and out and not out[-1].endswith((b"\n", b"\r")):
        out[-1] += source.newline
    return b"".join(out + tail)


def _compiles(name: str, data: bytes) -> bool:
    try:
        _compile(name, data)
    except SyntaxError:
        return False
    return True


def _compile(name: str, data: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        compile(data, name, "exec", dont_inherit=True)


def _blame(
    name: str,
    source: SourceFile,
    placed: Sequence[tuple[Edit, Insertion, list[bytes]]],
    result: bytes,
) -> None:
    """Raises for the edit that does not compile alone, else for all of the file's edits."""
    for edit, place, block in placed:
        try:
            _compile(name, _insert(source, [(edit, place, block)]))
        except SyntaxError as error:
            raise ForkError(
                f"does not compile after the edit: line {error.lineno}: {error.msg}",
                where=edit.where,
                anchor=edit.anchor,
                remedy="the lines must be valid at that place (return and await need a function)",
            ) from None
    try:
        _compile(name, result)
    except SyntaxError as error:
        topics = ", ".join(sorted({edit.topic for edit, _, _ in placed}))
        raise ForkError(
            f"does not compile with the edits of {topics} together: line {error.lineno}: "
            f"{error.msg}",
            where=name,
        ) from None
