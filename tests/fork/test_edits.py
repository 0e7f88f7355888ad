# SPDX-License-Identifier: Apache-2.0
"""Applying edits: nothing of upstream's is lost, nothing is applied twice, all of it compiles."""

from __future__ import annotations

import ast
import hashlib

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fork.edits import apply_edits
from fork.errors import ForkError, Problems
from fork.patches import Edit

NAME = "sglang/x.py"
SOURCE = b"def f(a):\n    a.b()\n    return a\n\n\ndef g():\n    pass\n"


def edit(
    scope: str = "f",
    place: str = "start",
    statement: str = "",
    lines: str = "count()\n",
    data: bytes = SOURCE,
    number: int = 1,
) -> Edit:
    digest = hashlib.sha256(data).hexdigest()
    return Edit("topic", number, NAME, digest, scope, place, statement, (1, 1), lines)


def test_edits_of_one_file_keep_the_order_given() -> None:
    edits = [
        edit("g", "end", lines="last()\n"),
        edit("f", "before", "return a", lines="one()\n"),
        edit("f", "after", "call a.b", lines="two()\n"),
        edit("", "end", lines="\n\nX = 1\n"),
    ]
    assert apply_edits(NAME, SOURCE, edits).decode() == (
        "def f(a):\n    a.b()\n    one()\n    two()\n    return a\n\n\n"
        "def g():\n    pass\n    last()\n\n\nX = 1\n"
    )


def test_lines_are_indented_but_not_inside_strings() -> None:
    lines = 'if a:\n    text = """one\n  two   \n"""\n\n    done()\n'
    got = apply_edits(NAME, SOURCE, [edit(lines=lines)]).decode()
    assert got.startswith(
        'def f(a):\n    if a:\n        text = """one\n  two   \n"""\n\n        done()\n    a.b()\n'
    )


def test_lines_inside_a_formatted_string_stay_put() -> None:
    lines = 'text = f"""one {a}\n {a!r} two\n"""\nmore()\n'
    got = apply_edits(NAME, SOURCE, [edit(lines=lines)]).decode()
    assert got.startswith(
        'def f(a):\n    text = f"""one {a}\n {a!r} two\n"""\n    more()\n    a.b()\n'
    )


def test_crlf_and_a_missing_last_newline_are_kept() -> None:
    data = b"def f(a):\r\n    return a\r\nX = 1"
    edits = [edit(data=data), edit("", "end", lines="Y = 2\n", data=data)]
    assert apply_edits(NAME, data, edits) == (
        b"def f(a):\r\n    count()\r\n    return a\r\nX = 1\r\nY = 2\r\n"
    )


def test_changed_pre_image_is_refused() -> None:
    with pytest.raises(ForkError) as caught:
        apply_edits(NAME, SOURCE + b"# more\n", [edit()])
    assert "pre-image changed" in str(caught.value)
    assert "in 'f', start" in str(caught.value)
    assert "bump" in str(caught.value.remedy)
    assert apply_edits(NAME, SOURCE + b"# more\n", [edit()], check_hash=False)


def test_missing_hash_is_refused_and_says_how_to_get_it() -> None:
    bare = Edit("topic", 1, NAME, "", "f", "start", "", (1, 1), "x()\n")
    with pytest.raises(ForkError, match=r"no sha256(.|\n)*--update-hashes"):
        apply_edits(NAME, SOURCE, [bare])


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("  x()\n", "not whole statements"),
        ("else:\n    x()\n", "not whole statements"),
        ("x(\n", "not whole statements"),
        ("nonlocal a\n", "does not compile after the edit"),
        ("from __future__ import annotations\n", "does not compile after the edit"),
    ],
)
def test_lines_that_do_not_fit_are_refused(lines: str, problem: str) -> None:
    with pytest.raises(ForkError) as caught:
        apply_edits(NAME, SOURCE, [edit(lines="ok()\n", number=1), edit(lines=lines, number=2)])
    assert problem in str(caught.value)
    assert "topic.toml edit 2" in str(caught.value)


def test_edits_that_only_fail_together_name_the_topics() -> None:
    lines = ["global a_name\na_name = 1\n", "a_name: int = 2\n"]
    edits = [edit("g", "start", lines=text, number=n) for n, text in enumerate(lines, 1)]
    for one in edits:
        apply_edits(NAME, SOURCE, [one])
    with pytest.raises(ForkError, match="edits of topic together"):
        apply_edits(NAME, SOURCE, edits)


def test_the_same_edit_in_two_topics_is_refused() -> None:
    with pytest.raises(ForkError, match=r"same place as patches/topic\.toml edit 1"):
        apply_edits(NAME, SOURCE, [edit(), edit(number=2)])


def test_all_problems_of_a_file_are_reported() -> None:
    with pytest.raises(Problems) as caught:
        apply_edits(NAME, SOURCE, [edit("no"), edit("g", number=2), edit("f.no", number=3)])
    assert [problem.where for problem in caught.value.problems] == [
        f"patches/topic.toml edit {number}, {NAME}" for number in (1, 3)
    ]


# Random modules: nested blocks of named calls, each name once, so that any of them is an anchor.


@st.composite
def modules(draw: st.DrawFn) -> tuple[str, list[str]]:
    names: list[str] = []

    def name() -> str:
        names.append(f"n{len(names)}")
        return names[-1]

    def block(depth: int, indent: str) -> list[str]:
        out: list[str] = []
        for _ in range(draw(st.integers(1, 3))):
            kind = draw(st.sampled_from(["call", "long", "if", "for", "try", "comment"]))
            if depth == 0 or kind in ("call", "comment", "long"):
                if kind == "comment":
                    out.append(f"{indent}# about the next line")
                text = '"""\n# no comment\n"""' if kind == "long" else ""
                out.append(f"{indent}{name()}({text})")
                out += [""] * draw(st.integers(0, 2))
                continue
            inner = indent + draw(st.sampled_from([" ", "    "]))
            head = {"if": "if a:", "for": "for b in c:", "try": "try:"}[kind]
            out += [indent + head, *block(depth - 1, inner)]
            if kind == "try":
                out += [f"{indent}finally:", *block(depth - 1, inner)]
            elif draw(st.booleans()):
                out += [f"{indent}else:", *block(depth - 1, inner)]
        return out

    body = block(draw(st.integers(0, 3)), "    ")
    head = draw(st.sampled_from([[], ['    """Doc."""'], ["    # no doc", ""]]))
    text = "\n".join(["import os", "", "def f(a, c):", *head, *body]) + "\n"
    return text, names


def without(tree: ast.Module, marker: str) -> str:
    """The tree's dump without the marker statements, and where they stand relative to others."""

    class Drop(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
            return None if called_name(node) == marker else node

    return ast.dump(Drop().visit(tree))


def neighbours(tree: ast.Module, name: str) -> tuple[str, str]:
    """Names of the calls directly before and after the call of `name`, in its own block."""
    for parent in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            called = [called_name(node) for node in getattr(parent, block, [])]
            if name in called:
                padded = ["", *called, ""]
                place = padded.index(name)
                return padded[place - 1], padded[place + 1]
    raise AssertionError(f"{name} is gone")


def called_name(node: ast.stmt) -> str:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))):
            return name
    return ""


@settings(deadline=None)
@given(
    modules(),
    st.data(),
    st.sampled_from(["before", "after", "start", "end"]),
    st.sampled_from(["mark()\n", 'mark("""\n  a\n""")\n', "# why\nmark()\n\n"]),
)
def test_an_insertion_keeps_everything_else(
    module: tuple[str, list[str]], data: st.DataObject, place: str, lines: str
) -> None:
    source, names = module
    inside = place in ("start", "end")
    target = "" if inside else f"call {data.draw(st.sampled_from(names))}"
    raw = source.encode()
    one = edit("f", place, target, lines, raw)
    result = apply_edits(NAME, raw, [one])

    rest = iter(result.splitlines())
    assert all(line in rest for line in raw.splitlines()), "a line is gone or out of order"
    assert len(result.splitlines()) == len(raw.splitlines()) + lines.count("\n")
    before, after = ast.parse(source), ast.parse(result)
    assert without(ast.parse(result), "mark") == ast.dump(before)
    if not inside:
        previous, following = neighbours(after, target.removeprefix("call "))
        assert (previous if place == "before" else following) == "mark"


@settings(deadline=None)
@given(modules(), st.sampled_from(["start", "end"]))
def test_applying_twice_is_refused(module: tuple[str, list[str]], place: str) -> None:
    raw = module[0].encode()
    once = apply_edits(NAME, raw, [edit("f", place, data=raw)])
    with pytest.raises(ForkError, match="already applied"):
        apply_edits(NAME, once, [edit("f", place, data=raw)])
    with pytest.raises(ForkError, match="already applied"):
        apply_edits(NAME, once, [edit("f", place, data=once)])


@settings(deadline=None)
@given(modules(), st.data())
def test_order_of_edits_at_different_places_does_not_matter(
    module: tuple[str, list[str]], data: st.DataObject
) -> None:
    source, names = module
    raw = source.encode()
    chosen = data.draw(
        st.lists(st.sampled_from(names), unique=True, min_size=2, max_size=4)
        if len(names) > 1
        else st.nothing()
    )
    edits = [
        edit("f", "before", f"call {name}", f"mark_{name}()\n", raw, number)
        for number, name in enumerate(chosen, 1)
    ]
    assume(len(edits) > 1)
    assert apply_edits(NAME, raw, edits) == apply_edits(NAME, raw, edits[::-1])
