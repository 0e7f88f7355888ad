# SPDX-License-Identifier: Apache-2.0
"""This repository's own patches on the real release."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fork.cli import main
from fork.export import PACKAGE_ROOT, export_series
from fork.plan import VERSION_FILE
from fork.repo import find_repo
from fork.work import strict_plan

REPO = find_repo(Path(__file__).parent)


@pytest.fixture(scope="module")
def plan(release):
    """All topics applied; raises with every problem there is."""
    return strict_plan(REPO, REPO.upstream(), release)


def test_check_passes(release, capsys) -> None:
    assert main(["--repo", str(REPO.root), "check"]) == 0, capsys.readouterr().err


def test_every_edit_only_inserts(plan, release) -> None:
    for name, data in plan.edited.items():
        rest = iter(data.splitlines(keepends=True))
        lines = (release / name).read_bytes().splitlines(keepends=True)
        assert all(line in rest for line in lines), name


def test_every_topic_has_tests(plan) -> None:
    for topic in plan.topics:
        assert topic.tests, f"{topic.where} lists no tests"
        for name in topic.tests:
            assert (REPO.root / name).exists(), f"{topic.where}: {name}"


@pytest.mark.slow
def test_git_am_of_the_exported_series_gives_the_built_tree(
    plan, release, git, tmp_path: Path
) -> None:
    if not plan.topics:
        pytest.skip("the series is empty")
    upstream = tmp_path / "upstream"
    shutil.copytree(release / "sglang", upstream / PACKAGE_ROOT / "sglang")
    git(upstream, "init", "--quiet")
    git(upstream, "add", "--all", "--force")
    git(upstream, "commit", "--quiet", "--message", "release")
    patches = export_series(REPO, plan.upstream, release, plan.topics, tmp_path / "export")
    assert len(patches) == len(plan.topics)
    git(upstream, "am", *map(str, patches))

    expected = {
        path.relative_to(release).as_posix(): path.read_bytes()
        for path in (release / "sglang").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    expected |= plan.edited
    expected |= {name: path.read_bytes() for name, path in plan.added_files().items()}
    base = upstream / PACKAGE_ROOT
    applied = {
        path.relative_to(base).as_posix(): path.read_bytes()
        for path in base.rglob("*")
        if path.is_file()
    }
    assert applied.keys() == expected.keys()
    differing = [name for name in expected if applied[name] != expected[name]]
    assert not differing
    assert VERSION_FILE not in plan.edited
    assert git(upstream, "status", "--short") == ""
