# SPDX-License-Identifier: Apache-2.0
"""Names statements of a syntax tree by kind and identifiers, for anchors.

A specification is a kind and, for most kinds, an operand: `call self.foo.bar`. The identifiers
are those of the code; literals, operators and layout play no part, so a reformatted file keeps
its anchors.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Scope = ast.Module | Definition


@dataclass(frozen=True, slots=True)
class Located:
    """A statement, and the block it is a direct member of."""

    node: ast.stmt
    block: list[ast.stmt]


class SpecificationError(ValueError):
    """A statement specification that has no meaning; the text says what is allowed."""


def walk(scope: Scope) -> Iterator[Located]:
    """Statements of `scope` in source order, nested blocks included.

    A nested definition is given, its body is not: that has a qualified name of its own.
    """
    yield from _walk_block(scope.body)


def _walk_block(block: list[ast.stmt]) -> Iterator[Located]:
    for node in block:
        yield Located(node, block)
        if not isinstance(node, Definition):
            for inner in blocks_of(node):
                yield from _walk_block(inner)


def blocks_of(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks directly inside a compound statement, in source order."""
    if body := getattr(node, "body", None):
        yield body
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body
    for name in ("orelse", "finalbody"):
        if block := getattr(node, name, None):
            yield block


def dotted(node: ast.AST | None) -> str | None:
    """`a.b().c[].d` for a chain of names, attributes, calls and subscripts, else None.

    True, False and None are given as such, so that `return True` can be named.
    """
    match node:
        case ast.Name(id=name):
            return name
        case ast.Constant(value=bool() | None as value):
            return str(value)
        case ast.Await(value=inner):
            return dotted(inner)
        case ast.Attribute(value=inner, attr=attr):
            return f"{base}.{attr}" if (base := dotted(inner)) else None
        case ast.Call(func=inner):
            return f"{base}()" if (base := dotted(inner)) else None
        case ast.Subscript(value=inner):
            return f"{base}[]" if (base := dotted(inner)) else None
    return None


def mentioned(node: ast.AST) -> set[str]:
    """Every dotted name in an expression, with its prefixes: `self.a.b` gives self and self.a too."""
    return {name for part in ast.walk(node) if (name := dotted(part))}


def _call_of(node: ast.stmt) -> str | None:
    value = getattr(node, "value", None)
    if isinstance(value, ast.Await):
        value = value.value
    return dotted(value.func) if isinstance(value, ast.Call) else None


def _targets(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Tuple | ast.List):
        for element in node.elts:
            yield from _targets(element)
    elif isinstance(node, ast.Starred):
        yield from _targets(node.value)
    elif name := dotted(node):
        yield name


def _is_assign(node: ast.stmt, name: str) -> bool:
    if isinstance(node, ast.Assign):
        return any(name in _targets(target) for target in node.targets)
    return isinstance(node, ast.AnnAssign) and dotted(node.target) == name


def _is_test(node: ast.stmt, names: str, kinds: tuple[type[ast.stmt], ...]) -> bool:
    if not isinstance(node, kinds):
        return False
    assert isinstance(node, ast.If | ast.While)
    return set(_split(names)) <= mentioned(node.test)


def _is_import(node: ast.stmt, name: str) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name == name for alias in node.names)
    if not isinstance(node, ast.ImportFrom):
        return False
    module = "." * node.level + (node.module or "")
    joint = "" if module.endswith(".") else "."
    return module == name or any(f"{module}{joint}{alias.name}" == name for alias in node.names)


def _is_with(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.With | ast.AsyncWith) and any(
        dotted(item.context_expr) in (name, f"{name}()") for item in node.items
    )


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


Matcher = Callable[[ast.stmt, str], bool]

_MATCHERS: dict[str, Matcher] = {
    "assign": _is_assign,
    "augassign": lambda n, name: isinstance(n, ast.AugAssign) and dotted(n.target) == name,
    "call": lambda n, name: (
        isinstance(n, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return)
        and _call_of(n) == name
    ),
    "if": lambda n, names: _is_test(n, names, (ast.If, ast.While)),
    "while": lambda n, names: _is_test(n, names, (ast.While,)),
    "for": lambda n, names: (
        isinstance(n, ast.For | ast.AsyncFor)
        and set(_split(names)) <= mentioned(n.target) | mentioned(n.iter)
    ),
    "with": _is_with,
    "return": lambda n, name: (
        isinstance(n, ast.Return)
        and (dotted(n.value) in (name, f"{name}()") if name else n.value is None)
    ),
    "raise": lambda n, name: (
        isinstance(n, ast.Raise)
        and (dotted(n.exc) in (name, f"{name}()") if name else n.exc is None)
    ),
    "import": _is_import,
    "def": lambda n, name: isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == name,
    "class": lambda n, name: isinstance(n, ast.ClassDef) and n.name == name,
    "try": lambda n, _: isinstance(n, ast.Try | ast.TryStar),
}
_WITHOUT_OPERAND = ("return", "raise", "try")


def matcher(specification: str) -> Callable[[ast.stmt], bool]:
    """A predicate for statements that fit `specification`.

    Raises:
        SpecificationError: unknown kind, or an operand where none may be or none where one must.
    """
    kind, _, operand = specification.partition(" ")
    operand = operand.strip()
    if kind not in _MATCHERS:
        raise SpecificationError(
            f"statement kind {kind!r} is unknown; allowed: {', '.join(_MATCHERS)}"
        )
    if not operand and kind not in _WITHOUT_OPERAND:
        raise SpecificationError(f"statement kind {kind!r} needs identifiers after it")
    if operand and kind == "try":
        raise SpecificationError("statement kind 'try' takes no identifiers")
    match = _MATCHERS[kind]
    return lambda node: match(node, operand)
