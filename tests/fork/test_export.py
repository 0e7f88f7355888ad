# SPDX-License-Identifier: Apache-2.0
"""The exported series: git takes it, and it gives what the build gives."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


@pytest.fixture
def series(checkout, make_edit):
    """Two topics that edit one file, add modules, and share a folder of tests."""
    head = 'modules = ["sglang/srt/{0}"]\ntests = ["tests/{0}", "tests/support.py"]'
    checkout.topic("one", make_edit(), head=head.format("first"))
    checkout.topic(
        "two",
        make_edit(lines="self.check()\n\n"),
        make_edit(file="sglang/srt/cache.py", scope="", at="end", lines="\nMORE = 'é'"),
        head=head.format("second"),
    )
    for name in ("first", "second"):
        checkout.module(f"sglang/srt/{name}/__init__.py")
        checkout.module(f"sglang/srt/{name}/E=1,N=2.json", "{}")
        checkout.module(f"../tests/{name}/test_it.py", "def test(): pass\n")
    checkout.module("../tests/support.py", "HELP = 1\n")
    return checkout


def lay_out(pristine: Path, folder: Path, git) -> Path:
    """The unpacked release as upstream's repository has it, committed."""
    shutil.copytree(pristine / "sglang", folder / "python" / "sglang")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message", "release")
    return folder


def package_files(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Content and executable bit of every file but the generated version."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), os.access(path, os.X_OK))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != "_version.py"
    }


def built_files(tree: Path) -> dict[str, tuple[bytes, bool]]:
    found = package_files(tree)
    for link in tree.rglob("*"):  # rglob does not enter linked folders
        if link.is_symlink() and link.is_dir():
            prefix = link.relative_to(tree)
            found |= {str(prefix / name): value for name, value in package_files(link).items()}
    return found


def test_git_am_gives_the_built_tree(series, git, tmp_path: Path) -> None:
    series.ok("develop", "--tree", str(tmp_path / "tree"))
    series.ok("export")
    upstream = lay_out(series.pristine, tmp_path / "upstream", git)
    patches = sorted((series.root / "build" / "export").iterdir())
    assert [path.name for path in patches] == ["0001-area-one.patch", "0002-area-two.patch"]
    git(upstream, "am", *map(str, patches))
    applied = package_files(upstream / "python" / "sglang")
    assert applied == built_files(tmp_path / "tree" / "sglang")
    assert "srt/second/E=1,N=2.json" in applied

    subjects = git(upstream, "log", "--format=%s", "-2").split()
    assert subjects == ["area:", "two", "area:", "one"]
    body = git(upstream, "log", "--format=%b", "-1")
    assert body.split("\n\n")[:3] == ["Because two.", "Forwarded: no: a test", "Retire when: never"]
    changed = git(upstream, "show", "--name-only", "--format=", "HEAD~1").split()
    assert sorted(changed) == [
        "python/sglang/srt/first/E=1,N=2.json",
        "python/sglang/srt/first/__init__.py",
        "python/sglang/srt/scheduler.py",
        "test/registered/unit/first/test_it.py",
        "test/registered/unit/support.py",
    ]


def test_each_commit_stands_alone(series, git, tmp_path: Path) -> None:
    """The first patch alone gives what a build of the first topic alone gives."""
    series.ok("export")
    upstream = lay_out(series.pristine, tmp_path / "upstream", git)
    git(upstream, "am", str(series.root / "build/export/0001-area-one.patch"))
    (series.root / "patches" / "series").write_text("one\n")
    series.ok("develop", "--tree", str(tmp_path / "tree"))
    assert package_files(upstream / "python" / "sglang") == built_files(tmp_path / "tree/sglang")


def test_the_same_patches_give_the_same_files(series, git, monkeypatch) -> None:
    def exported() -> dict[str, bytes]:
        series.ok("export")
        return {p.name: p.read_bytes() for p in (series.root / "build/export").iterdir()}

    first = exported()
    monkeypatch.setenv("GIT_AUTHOR_DATE", "2001-01-01T00:00:00")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert exported() == first
    assert b"Date: Fri, 2 Jan 2026 03:04:07 +0000" in first["0001-area-one.patch"]
    assert b"From: Test Author <author@example.com>" in first["0001-area-one.patch"]


def test_a_shorter_series_replaces_a_longer_one(series, git) -> None:
    series.ok("export")
    (series.root / "patches" / "two.toml").unlink()
    (series.root / "patches" / "series").write_text("one\n")
    shutil.rmtree(series.root / "python/sglang/srt/second")
    series.ok("export")
    names = [path.name for path in (series.root / "build/export").iterdir()]
    assert names == ["0001-area-one.patch"]


def test_other_files_are_not_deleted(series, git, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    text = series.fails("export", "--output", str(tmp_path / "out"))
    assert "holds files that are no patches (notes.txt)" in text
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]


def test_what_cannot_be_exported_is_named(series, git, monkeypatch) -> None:
    shutil.rmtree(series.root / "tests" / "second")
    assert "patches/two.toml: tests: no such file or folder tests/second" in series.fails("export")
    monkeypatch.delenv("GIT_AUTHOR_NAME")
    monkeypatch.setenv("HOME", "/nonexistent")
    assert "git has no user.name" in series.fails("export")
    (series.root / "build" / "export").mkdir(exist_ok=True)
    assert not list((series.root / "build" / "export").iterdir())


def test_an_empty_series_has_nothing_to_export(checkout, git) -> None:
    assert "there is no topic to export" in checkout.fails("export")
