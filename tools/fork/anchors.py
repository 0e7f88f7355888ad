# SPDX-License-Identifier: Apache-2.0
"""Finds where an edit goes: from names in the syntax tree to a line of the file.

An anchor resolves to a place between two lines where whole statements may stand. What is inserted
there can neither split an upstream statement nor change which block one belongs to.
"""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from fork.errors import ForkError
from fork.patches import Edit
from fork.statements import (
    Definition,
    Scope,
    SpecificationError,
    matcher,
    walk,
)

_Node = TypeVar("_Node", bound=ast.AST)


@dataclass(frozen=True, slots=True)
class Insertion:
    """Lines go before 0-based line `row` of the pristine file, each behind `indent`."""

    row: int
    indent: str


class SourceFile:
    """An upstream file as its lines, its syntax tree and the lines that hold only a comment.

    Lines are bytes split as Python's parser does (form feeds and Unicode separators do not end
    a line), so that every line not inserted stays as it was to the byte.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self.lines = data.splitlines(keepends=True)
        try:
            data.decode("utf-8")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                self.tree = ast.parse(data, filename=name)
            self.comment_rows = _comment_rows(data)
        except (SyntaxError, UnicodeDecodeError, tokenize.TokenError) as error:
            raise ForkError(f"the file itself does not parse: {error}", where=name) from None

    @property
    def newline(self) -> bytes:
        return b"\r\n" if self.lines and self.lines[0].endswith(b"\r\n") else b"\n"


def _comment_rows(data: bytes) -> dict[int, int]:
    """0-based rows that hold a comment and nothing else, with the comment's column."""
    rows = {}
    for token in tokenize.tokenize(io.BytesIO(data).readline):
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
            rows[token.start[0] - 1] = token.start[1]
    return rows


def resolve(source: SourceFile, edit: Edit) -> Insertion:
    """Where `edit` goes in `source`.

    Raises:
        ForkError: the scope or statement is gone, matches another number of times than stated, or
            is at a place where no statement can be inserted or the inserted one could never run.
    """
    scope = find_scope(source, edit)
    if not edit.statement:
        if edit.place in ("start", "end"):
            return _inside(source, edit, scope, scope.body)
        if isinstance(scope, ast.Module):
            raise _error(edit, "nothing is before or after the module", "use at = start or end")
        return _beside(source, edit, scope)
    node = _find_statement(source, edit, scope)
    if edit.place in ("start", "end"):
        body = getattr(node, "body", None)
        if not body:
            raise _error(
                edit, "that statement has no block to go inside", "use at = before or after"
            )
        return _inside(source, edit, node, body)
    return _beside(source, edit, node)


def _error(edit: Edit, problem: str, remedy: str) -> ForkError:
    return ForkError(problem, where=edit.where, anchor=edit.anchor, remedy=remedy)


def find_scope(source: SourceFile, edit: Edit) -> Scope:
    """The definition (or module) that `edit` is in; ForkError where it is gone or ambiguous."""
    found: list[Scope] = [source.tree]
    path: list[str] = []
    parts = edit.scope.split(".") if edit.scope else []
    for part in parts:
        path.append(part)
        found = [
            item.node
            for scope in found
            for item in walk(scope)
            if isinstance(item.node, Definition) and item.node.name == part
        ]
        if not found:
            raise _error(
                edit,
                f"anchor is gone: no definition {'.'.join(path)!r}",
                "find where upstream moved or renamed it, and write the new name as `in`",
            )
    # Without a statement, `occurrence` counts definitions of the same name (overloads, setters).
    return _pick(edit, found, f"definition {edit.scope!r}", counted=not edit.statement)


def _find_statement(source: SourceFile, edit: Edit, scope: Scope) -> ast.stmt:
    try:
        fits = matcher(edit.statement)
    except SpecificationError as error:
        raise _error(edit, str(error), "see the list of kinds in patches/README.md") from None
    matching = [item.node for item in walk(scope) if fits(item.node)]
    found = [node for node in matching if not _is_elif(source, node)]
    if not found and matching:
        raise _error(
            edit,
            f"only an `elif` fits (line {matching[0].lineno}); statements cannot stand beside one",
            "anchor on the `if` it belongs to, or inside a branch",
        )
    if not found:
        raise _error(
            edit,
            f"anchor is gone: no statement {edit.statement!r}",
            "find what upstream changed, and name the statement by its new identifiers",
        )
    return _pick(edit, found, f"statement {edit.statement!r}", counted=True)


def _pick(edit: Edit, found: Sequence[_Node], what: str, *, counted: bool) -> _Node:
    which, total = edit.occurrence if counted else (1, 1)
    if len(found) == total:
        return found[which - 1]
    rows = ", ".join(str(getattr(node, "lineno", 1)) for node in found)
    raise _error(
        edit,
        f"{what} matches {len(found)} times (lines {rows}), not {total}",
        'name a statement by more identifiers, or pick one with occurrence = "K/N"',
    )


def _is_elif(source: SourceFile, node: ast.stmt) -> bool:
    line = source.lines[node.lineno - 1]
    return isinstance(node, ast.If) and line[node.col_offset :].startswith(b"elif")


def _first_row(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(item.lineno for item in decorators)]) - 1


def _end_row(node: ast.stmt) -> int:
    """Row of the first line after `node`."""
    assert node.end_lineno is not None
    return node.end_lineno


def _indent(source: SourceFile, node: ast.stmt) -> str:
    line = source.lines[_first_row(node)]
    return line[: len(line) - len(line.lstrip(b" \t\f"))].decode()


def _check_starts_line(source: SourceFile, edit: Edit, node: ast.stmt) -> None:
    before = source.lines[node.lineno - 1][: node.col_offset]
    if before.strip():
        raise _error(
            edit,
            f"line {node.lineno} holds something else before the place",
            "anchor on a statement that has its lines to itself",
        )


def _check_ends_line(source: SourceFile, edit: Edit, node: ast.stmt) -> None:
    assert node.end_col_offset is not None
    rest = source.lines[_end_row(node) - 1][node.end_col_offset :].strip()
    if rest and not rest.startswith(b"#"):
        raise _error(
            edit,
            f"line {node.end_lineno} holds something else after the place",
            "anchor on a statement that has its lines to itself",
        )


def _beside(source: SourceFile, edit: Edit, node: ast.stmt) -> Insertion:
    indent = _indent(source, node)
    if edit.place == "before":
        _check_starts_line(source, edit, node)
        return Insertion(_above_comments(source, _first_row(node), indent), indent)
    _check_reachable(edit, node)
    _check_ends_line(source, edit, node)
    return Insertion(_end_row(node), indent)


def _inside(source: SourceFile, edit: Edit, owner: ast.AST, body: list[ast.stmt]) -> Insertion:
    if not body:  # only a module may be empty
        return Insertion(len(source.lines), "")
    _check_starts_line(source, edit, body[0])
    indent = _indent(source, body[0])
    if edit.place == "end":
        _check_reachable(edit, body[-1])
        _check_ends_line(source, edit, body[-1])
        return Insertion(_end_row(body[-1]), indent)
    prologue = _prologue(owner, body)
    if prologue:
        _check_ends_line(source, edit, body[prologue - 1])
        return Insertion(_end_row(body[prologue - 1]), indent)
    row = _first_row(body[0])
    return Insertion(
        row if isinstance(owner, ast.Module) else _above_comments(source, row, indent), indent
    )


def _prologue(owner: ast.AST, body: list[ast.stmt]) -> int:
    """How many leading statements must stay first: a docstring, and a module's __future__ imports."""
    count = 0
    if isinstance(owner, Scope) and ast.get_docstring(owner, clean=False) is not None:
        count = 1
    while (
        isinstance(owner, ast.Module)
        and count < len(body)
        and isinstance(node := body[count], ast.ImportFrom)
        and node.module == "__future__"
    ):
        count += 1
    return count


def _above_comments(source: SourceFile, row: int, indent: str) -> int:
    """Row above the comments that stand directly on top of `row`, which belong to it.

    A block that reaches the top of the file is the file's own header and stays there.
    """
    top = row
    while source.comment_rows.get(top - 1) == len(indent):
        top -= 1
    return row if top == 0 else top


def _check_reachable(edit: Edit, node: ast.stmt) -> None:
    if _leaves(node):
        raise _error(
            edit,
            f"what follows line {node.lineno} would never run: it leaves the block",
            "insert before that statement",
        )


def _leaves(node: ast.stmt) -> bool:
    if isinstance(node, ast.If) and node.orelse:
        return _leaves(node.body[-1]) and _leaves(node.orelse[-1])
    return isinstance(node, ast.Return | ast.Raise | ast.Continue | ast.Break)
