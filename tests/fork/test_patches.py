# SPDX-License-Identifier: Apache-2.0
"""The patch format: what is read, and how each mistake is named."""

from __future__ import annotations

import tomllib

import pytest

from fork.errors import ForkError
from fork.patches import parse_topic
from fork.rehash import rehashed_text

HEAD = 'title = "a: b"\nwhy = "w"\nforwarded = "no"\nretire_when = "r"\n'
EDIT = '[[edit]]\nfile = "sglang/a.py"\nsha256 = ""\nin = "f"\nat = "start"\nlines = "x()\\n"\n'


def parse(text: str):
    return parse_topic("topic", tomllib.loads(text))


def test_a_topic_reads_as_written() -> None:
    topic = parse(
        HEAD
        + 'modules = ["sglang/srt/new/", "sglang/one.py"]\ntests = ["tests/new"]\n'
        + EDIT.replace('at = "start"', 'at = "before"\nstatement = "call  a.b"\noccurrence = "2/3"')
    )
    assert topic.modules == ("sglang/srt/new", "sglang/one.py")
    assert topic.tests == ("tests/new",)
    [edit] = topic.edits
    assert (edit.statement, edit.occurrence, edit.number) == ("call a.b", (2, 3), 1)
    assert edit.where == "patches/topic.toml edit 1, sglang/a.py"
    assert edit.anchor == "in 'f', before 'call a.b' (2 of 3)"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD.replace("why", "wy") + EDIT, "unknown key 'wy'"),
        (HEAD.replace('"w"', '" "') + EDIT, "why must be a non-empty string"),
        (HEAD.replace('"a: b"', '"a\\nb"') + EDIT, "title must be one line"),
        (HEAD, "adds no module and makes no edit"),
        (HEAD + 'modules = "sglang/a"\n', "modules must be a list"),
        (HEAD + 'modules = ["srt/a"]\n', "'srt/a' must be a relative path below sglang/"),
        (HEAD + 'modules = ["sglang/../a"]\n', "must be a relative path"),
        (HEAD + 'tests = ["../x"]\n' + EDIT, "must be a relative path below tests/"),
        (HEAD + "edit = 1\n", "[[edit]] tables"),
        (HEAD + EDIT + 'after = "x"\n', "unknown key 'after'"),
        (HEAD + EDIT.replace('"sglang/a.py"', '"sglang/a.cpp"'), "must be a Python file"),
        (HEAD + EDIT.replace('"sglang/a.py"', '"/sglang/a.py"'), "must be a Python file"),
        (HEAD + EDIT.replace('in = "f"\n', ""), "needs `in`"),
        (HEAD + EDIT.replace('"start"', '"top"'), "at is 'top'"),
        (HEAD + EDIT + "statement = 3\n", "statement must be a string"),
        (HEAD + EDIT.replace('"x()\\n"', '""'), "lines must be a non-empty string"),
        (HEAD + EDIT + "occurrence = 2\n", 'write "K/N"'),
        (HEAD + EDIT + 'occurrence = "3/2"\n', 'write "K/N"'),
        (HEAD + EDIT + "occurrence = true\n", 'write "K/N"'),
    ],
)
def test_mistakes_name_the_file_and_what_is_allowed(text: str, problem: str) -> None:
    with pytest.raises(ForkError) as caught:
        parse(text)
    assert problem in str(caught.value)
    assert str(caught.value).startswith("patches/topic.toml")


def test_new_hashes_change_nothing_else() -> None:
    text = (
        "# A comment.\n"
        + HEAD
        + EDIT.replace('sha256 = ""', 'sha256 = "old"  # note')
        + '\n[[edit]]\nfile = "sglang/b.py"\nin = ""\nat = "end"\n'
        + "lines = '''\n[[edit]]\nfile = 'no'\nsha256 = 'no'\n'''\n"
        + '[[edit]]\nin = "g"\nat = "end"\nfile = "sglang/c.py"\nlines = """\nx\n"""\nsha256 = "3"\n'
    )
    got = rehashed_text(text, {1: "a" * 64, 2: "b" * 64, 3: "c" * 64}, "patches/topic.toml")
    digests = [edit["sha256"] for edit in tomllib.loads(got)["edit"]]
    assert digests == ["a" * 64, "b" * 64, "c" * 64]
    kept = [line for line in got.splitlines() if not line.startswith('sha256 = "')]
    assert kept == [line for line in text.splitlines() if not line.startswith('sha256 = "')]


def test_a_layout_that_is_not_understood_is_left_alone() -> None:
    text = HEAD + 'edit = [{ file = "sglang/a.py", in = "", at = "end", lines = "x" }]\n'
    with pytest.raises(ForkError, match="cannot set sha256 in this layout"):
        rehashed_text(text, {1: "a" * 64}, "patches/topic.toml")
