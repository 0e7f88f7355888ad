# SPDX-License-Identifier: Apache-2.0
"""What `check` finds: series, claims, collisions, hashes; and that it writes nothing."""

from __future__ import annotations

import pytest


def test_a_good_series_passes(checkout, make_edit) -> None:
    checkout.topic("one", make_edit(), head='modules = ["sglang/srt/new"]')
    checkout.module("sglang/srt/new/__init__.py")
    checkout.module("sglang/srt/new/__pycache__/x.pyc")
    assert "1 topics, 1 edits, 1 upstream files, 1 added files: all apply" in checkout.ok("check")


@pytest.mark.parametrize(
    ("series", "problem"),
    [
        ("one\ntwo\n", "topic 'two' has no file patches/two.toml"),
        ("# nothing\n", "patches/one.toml: not listed in patches/series"),
        ("one\none\n", "'one' stands twice"),
        ("one.toml\n", "'one.toml' is not a topic name"),
    ],
)
def test_series_and_files_must_agree(checkout, make_edit, series: str, problem: str) -> None:
    checkout.topic("one", make_edit())
    (checkout.root / "patches" / "series").write_text(series)
    assert problem in checkout.fails("check")


def test_a_draft_can_be_tried_unlisted(checkout, make_edit) -> None:
    checkout.topic("draft", make_edit(digest=""), listed=False)
    text = checkout.ok("check", "--also", "draft", "--update-hashes")
    assert "patches/draft.toml edit 1: sha256 = " in text
    assert "1 topics" in checkout.ok("check", "--also", "draft")


def test_every_problem_is_shown_and_nothing_is_written(checkout, make_edit) -> None:
    checkout.topic("one", make_edit(scope="Scheduler.gone"), make_edit(digest="0" * 64))
    checkout.topic("two", make_edit(file="sglang/srt/no.py"), make_edit(lines="x = ("))
    before = checkout.state()
    text = checkout.fails("check")
    for problem in (
        "one.toml edit 1, sglang/srt/scheduler.py, in 'Scheduler.gone', start: anchor is gone",
        "one.toml edit 2, sglang/srt/scheduler.py, in 'Scheduler.step', start: pre-image changed",
        "two.toml edit 1, sglang/srt/no.py, in 'Scheduler.step', start: upstream has no such file",
        "two.toml edit 2, sglang/srt/scheduler.py, in 'Scheduler.step', start: the lines are not",
    ):
        assert problem in text
    assert text.count("remedy:") == 4
    assert checkout.state() == before


@pytest.mark.parametrize(
    ("modules", "files", "problem"),
    [
        (["sglang/srt/cache.py"], ["sglang/srt/cache.py"], "collides with upstream's"),
        (["sglang/srt/cache"], ["sglang/srt/cache/__init__.py"], "upstream's sglang/srt/cache.py"),
        (["sglang/srt"], ["sglang/srt/new.py"], "collides with upstream's sglang/srt"),
        (["sglang/srt.py"], ["sglang/srt.py"], "collides with upstream's sglang/srt"),
        (["sglang/srt/run.sh/x.py"], ["sglang/srt/run.sh/x.py"], "run.sh is a file upstream"),
        (["sglang/new", "sglang/new/a.py"], ["sglang/new/a.py"], "is claimed by topic 'one'"),
        (["sglang/absent"], [], "no such file or folder python/sglang/absent"),
        (
            ["sglang/new/a.py"],
            ["sglang/new/a.py", "sglang/new/b.py"],
            "python/sglang/new: no topic claims b.py",
        ),
    ],
)
def test_added_modules(checkout, modules: list[str], files: list[str], problem: str) -> None:
    checkout.topic("one", head=f"modules = {modules}")
    for name in files:
        checkout.module(name)
    assert problem in checkout.fails("check")


def test_two_topics_cannot_claim_one_module(checkout) -> None:
    checkout.module("sglang/srt/new/__init__.py")
    for name in ("one", "two"):
        checkout.topic(name, head='modules = ["sglang/srt/new"]')
    assert "patches/two.toml, module sglang/srt/new: sglang/srt/new is claimed by topic 'one'" in (
        checkout.fails("check")
    )


def test_tests_must_exist(checkout, make_edit) -> None:
    checkout.topic("one", make_edit(), head='tests = ["tests/one"]')
    assert "patches/one.toml: tests: no such file or folder tests/one" in checkout.fails("check")


def test_the_version_file_is_not_for_edits(checkout, make_edit) -> None:
    checkout.topic("one", make_edit(file="sglang/_version.py", scope="", at="end"))
    assert "this file is written by the build" in checkout.fails("check")
