# SPDX-License-Identifier: Apache-2.0
"""Where each kind of anchor puts its lines, and what is refused."""

from __future__ import annotations

import textwrap

import pytest

from fork.anchors import SourceFile, resolve
from fork.errors import ForkError
from fork.patches import Edit

SOURCE = textwrap.dedent('''\
    # SPDX header
    """Module."""
    from __future__ import annotations

    import os

    LIMIT: int = 3


    # About Box.
    @register
    class Box:
        """Holds items."""

        def put(self, item):
            # Keep order.
            self.items.append(item)
            self.last, self.count = item, self.count + 1

        def size(self): return len(self.items)

        async def drain(self):
            while self.items and not self.closed:
                await self.flush(self.items.pop())
            if self.closed:
                raise Closed
            elif self.items:
                return
            else:
                self.table[0] = None
            for index, item in enumerate(self.items):
                self.total += item
            with open_file(self.path) as out, self.lock:
                out.write("# not a comment")
            try:
                run()
            except OSError:
                handle(self.path)
            finally:
                close()
            return self.total


    def first():
        def inner():
            return 1
        x = 1; y = 2
        return inner()


    def twice():
        log()
        log()
    ''')


def at(scope: str, place: str, statement: str = "", occurrence: tuple[int, int] = (1, 1)) -> Edit:
    return Edit("topic", 1, "sglang/x.py", "", scope, place, statement, occurrence, "pass\n")


def place(edit: Edit, source: str = SOURCE) -> str:
    """The indentation and the line that the insertion would come before."""
    found = resolve(SourceFile(source.encode(), "x.py"), edit)
    rows = source.splitlines()
    return f"{len(found.indent)}|{rows[found.row] if found.row < len(rows) else '<end>'}".strip()


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (at("", "start"), "0|"),
        (at("", "end"), "0|<end>"),
        (at("", "after", "assign LIMIT"), "0|"),
        (at("", "before", "import os"), "0|import os"),
        (at("", "after", "import __future__.annotations"), "0|"),
        (at("Box", "before"), "0|# About Box."),
        (at("", "before", "class Box"), "0|# About Box."),
        (at("Box", "start"), "4|"),
        (at("Box", "end"), "4|"),
        (at("Box.put", "start"), "8|        # Keep order."),
        (at("Box.put", "before"), "4|    def put(self, item):"),
        (at("Box.put", "end"), "8|"),
        (at("Box.size", "after"), "4|"),
        (at("Box.put", "before", "call self.items.append"), "8|        # Keep order."),
        (
            at("Box.put", "after", "call self.items.append"),
            "8|        self.last, self.count = item, self.count + 1",
        ),
        (
            at("Box.put", "before", "assign self.count"),
            "8|        self.last, self.count = item, self.count + 1",
        ),
        (
            at("Box.drain", "before", "while self.items,self.closed"),
            "8|        while self.items and not self.closed:",
        ),
        (
            at("Box.drain", "before", "call self.flush"),
            "12|            await self.flush(self.items.pop())",
        ),
        (at("Box.drain", "end", "if self.items"), "12|        if self.closed:"),
        (at("Box.drain", "before", "raise Closed"), "12|            raise Closed"),
        (at("Box.drain", "before", "return"), "12|            return"),
        (
            at("Box.drain", "after", "assign self.table[]"),
            "12|        for index, item in enumerate(self.items):",
        ),
        (
            at("Box.drain", "start", "for item"),
            "12|            self.total += item",
        ),
        (
            at("Box.drain", "after", "augassign self.total"),
            "12|        with open_file(self.path) as out, self.lock:",
        ),
        (
            at("Box.drain", "after", "with self.lock"),
            "8|        try:",
        ),
        (at("Box.drain", "start", "try"), "12|            run()"),
        (at("Box.drain", "before", "call handle"), "12|            handle(self.path)"),
        (at("Box.drain", "before", "call close"), "12|            close()"),
        (at("Box.drain", "before", "return self.total"), "8|        return self.total"),
        (at("first.inner", "before"), "4|    def inner():"),
        (at("first", "before", "return inner"), "4|    return inner()"),
        (at("twice", "after", "call log", (1, 2)), "4|    log()"),
        (at("twice", "after", "call log", (2, 2)), "4|<end>"),
    ],
    ids=lambda value: value.anchor if isinstance(value, Edit) else "",
)
def test_place(edit: Edit, expected: str) -> None:
    assert place(edit) == expected


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (at("Bax", "start"), "no definition 'Bax'"),
        (at("Box.pot", "start"), "no definition 'Box.pot'"),
        (at("inner", "start"), "no definition 'inner'"),
        (at("Box.put", "before", "call self.items.pop"), "no statement 'call self.items.pop'"),
        (at("twice", "before", "call log"), "matches 2 times (lines 52, 53), not 1"),
        (at("twice", "before", "call log", (1, 3)), "matches 2 times (lines 52, 53), not 3"),
        (at("Box", "before", "call self.flush"), "no statement"),
        (at("Box.drain", "before", "if self.nothing"), "no statement"),
        (at("Box.drain", "after", "return self.total"), "would never run"),
        (at("Box.drain", "end"), "would never run"),
        (at("Box.drain", "end", "if self.closed", (2, 2)), "would never run"),
        (at("Box.size", "start"), "holds something else before the place"),
        (at("first", "before", "assign y"), "holds something else before the place"),
        (at("first", "after", "assign x"), "holds something else after the place"),
        (at("", "before"), "nothing is before or after the module"),
        (at("first", "start", "return inner"), "has no block"),
        (at("first", "before", "jump x"), "kind 'jump' is unknown; allowed: assign"),
        (at("first", "before", "call"), "needs identifiers"),
        (at("Box.drain", "start", "try it"), "takes no identifiers"),
    ],
    ids=lambda value: value.anchor if isinstance(value, Edit) else "",
)
def test_refused(edit: Edit, problem: str) -> None:
    with pytest.raises(ForkError) as caught:
        place(edit)
    assert problem in str(caught.value)
    assert edit.where in str(caught.value)
    assert edit.anchor in str(caught.value)
    assert caught.value.remedy


def test_an_elif_is_named_but_not_used() -> None:
    source = "def f(a, b):\n    if a:\n        x()\n    elif b:\n        y()\n"
    with pytest.raises(ForkError, match="only an `elif` fits"):
        place(at("f", "before", "if b"), source)


def test_overloads_are_picked_by_occurrence() -> None:
    source = "def f(): \n    a()\n\n\ndef f():\n    b()\n"
    with pytest.raises(ForkError, match=r"matches 2 times \(lines 1, 5\)"):
        place(at("f", "start"), source)
    assert place(at("f", "start", "", (2, 2)), source) == "4|    b()"


def test_a_file_header_stays_on_top() -> None:
    source = "# Licence.\nimport os\n"
    assert place(at("", "start"), source) == "0|import os"
    assert place(at("", "before", "import os"), source) == "0|import os"


def test_an_empty_file_takes_lines_at_its_end() -> None:
    assert place(at("", "start"), "") == "0|<end>"
    assert place(at("", "end"), "# only a comment\n") == "0|<end>"


def test_form_feeds_and_line_separators_do_not_shift_the_place() -> None:
    source = 'a = "x\u2028y"\n\x0c\nb = 1\n'
    found = resolve(SourceFile(source.encode(), "x.py"), at("", "before", "assign b"))
    assert found.row == 2


def test_unparsable_file_is_named() -> None:
    with pytest.raises(ForkError, match=r"x\.py: the file itself does not parse"):
        SourceFile(b"def f(:\n", "x.py")
    with pytest.raises(ForkError, match="does not parse"):
        SourceFile(b"a = '\xff'\n", "x.py")
