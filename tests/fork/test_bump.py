# SPDX-License-Identifier: Apache-2.0
"""Re-anchoring onto another release: the report, and that failure changes nothing."""

from __future__ import annotations

import hashlib
import tomllib

import pytest

from fork.bump import compare
from fork.plan import select_topics
from fork.repo import find_repo
from fork.wheel import unpack


@pytest.fixture
def two_edits(checkout, make_edit):
    checkout.topic("one", make_edit(), head='modules = ["sglang/srt/new"]')
    checkout.topic("two", make_edit(file="sglang/srt/cache.py", scope="evict", lines="n += 1"))
    checkout.module("sglang/srt/new/__init__.py")
    return checkout


@pytest.fixture
def next_release(two_edits, make_release, scheduler_source, release_files):
    """Writes 1.2.4 into the index, with the given files changed, and gives its wheel."""

    def write(**changes: str | None):
        files = dict(release_files)
        moved = scheduler_source.replace("import os\n", "import os\nimport sys\n")
        changed = {"sglang/srt/scheduler.py": moved}
        changed |= {f"sglang/srt/{name}.py": text for name, text in changes.items()}
        for name, text in changed.items():
            files.pop(name, None)
            if text is not None:
                files[name] = text
        return make_release(two_edits.wheel.parent, "1.2.4", files)

    return write


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.split()[0] in STATUSES]


STATUSES = ("unchanged", "moved", "failed")


def test_all_fit(two_edits, next_release) -> None:
    wheel = next_release()
    text = two_edits.ok("bump", "1.2.4")
    assert [(row[0], row[1], row[2]) for row in rows(text)] == [
        ("unchanged", "one", "sglang/srt/new"),
        ("unchanged", "two", "sglang/srt/cache.py:"),
        ("moved", "one", "sglang/srt/scheduler.py:"),
    ]
    assert text.count("line 20 -> 21\n") == 1, "moved by what is above it, itself as before"
    assert "fork: 2 unchanged, 1 moved, 0 failed" in text
    pins = tomllib.loads((two_edits.root / "UPSTREAM.toml").read_text())
    assert (pins["version"], pins["local"]) == ("1.2.4", "opt.1")
    assert pins["wheel"] == [
        {"file": wheel.name, "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()}
    ]
    assert "1.2.4+opt.1: 2 topics, 2 edits" in two_edits.ok("check")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"cache": "def evict_now(n):\n    return n\n"}, "anchor is gone: no definition 'evict'"),
        ({"cache": "def evict(n):\n    n += 1\n    return n\n"}, "already applied"),
        ({"cache": None}, "upstream has no such file"),
        ({"new": "X = 1\n"}, "collides with upstream's sglang/srt/new.py"),
    ],
)
def test_what_does_not_fit_says_why(two_edits, next_release, changes, problem: str) -> None:
    two_edits.ok("fetch")
    new = unpack(next_release(**changes), two_edits.pristine.parent / "new")
    repo = find_repo(two_edits.root)
    outcomes = compare(repo, two_edits.pristine, new, select_topics(repo))
    [failed] = [outcome for outcome in outcomes if outcome.status == "failed"]
    assert problem in failed.detail
    assert len(outcomes) == 3


def test_a_moved_edit_says_whether_its_definition_changed(two_edits, next_release) -> None:
    two_edits.ok("fetch")
    new = unpack(
        next_release(cache="LIMIT = 1\n\n\ndef evict(n):\n    log(n)\n    return n\n"),
        two_edits.pristine.parent / "new",
    )
    repo = find_repo(two_edits.root)
    details = {
        outcome.topic: outcome.detail
        for outcome in compare(repo, two_edits.pristine, new, select_topics(repo))
        if outcome.status == "moved"
    }
    assert details == {"one": "line 20 -> 21", "two": "line 5 -> 5, definition changed"}


def test_edits_that_fit_one_by_one_but_not_together_fail(two_edits, make_edit) -> None:
    cache = {"file": "sglang/srt/cache.py", "scope": "evict"}
    two_edits.topic("three", make_edit(lines="global LIMIT\nLIMIT = 1", **cache))
    two_edits.topic("four", make_edit(lines="LIMIT: int = 3", **cache))
    two_edits.ok("fetch")
    repo = find_repo(two_edits.root)
    outcomes = compare(repo, two_edits.pristine, two_edits.pristine, select_topics(repo))
    failed = {outcome.topic for outcome in outcomes if outcome.status == "failed"}
    assert failed == {"two", "three", "four"}, "all that are in the file that does not compile"


def test_one_failure_changes_nothing(two_edits, next_release) -> None:
    wheel = next_release(cache="LIMIT = 2\n")
    before = two_edits.state()
    text = two_edits.fails("bump", "1.2.4", "--wheel", str(wheel))
    assert [row[0] for row in rows(text)] == ["unchanged", "moved", "failed"]
    assert "1 of 3 do not fit 1.2.4; nothing was written" in text
    assert two_edits.state() == before
    old = tomllib.loads((two_edits.root / "patches/two.toml").read_text())

    two_edits.ok("bump", "1.2.4", "--wheel", str(wheel), "--partial")
    assert tomllib.loads((two_edits.root / "UPSTREAM.toml").read_text())["version"] == "1.2.4"
    assert tomllib.loads((two_edits.root / "patches/two.toml").read_text()) == old
    text = two_edits.fails("check")
    assert "two.toml edit 1" in text
    assert "one.toml" not in text


def test_a_dry_run_only_reports(two_edits, next_release) -> None:
    wheel = next_release()
    before = two_edits.state()
    assert "moved" in two_edits.ok("bump", "1.2.4", "--dry-run", "--wheel", str(wheel))
    assert two_edits.state() == before


def test_an_unknown_release_is_named(two_edits) -> None:
    before = two_edits.state()
    assert "the package index has no wheel of sglang 9.9" in two_edits.fails("bump", "9.9")
    assert two_edits.state() == before
