# SPDX-License-Identifier: Apache-2.0
"""The development tree: made whole or not at all, refreshed in place, links live."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import importlib.metadata as m, sglang, sglang.srt.new as new
print(sglang.__version__, m.version("sglang"), new.VALUE)
print([e.name for e in m.distribution("sglang").entry_points])
"""


@pytest.fixture
def tree(checkout, make_edit, tmp_path: Path) -> Path:
    checkout.topic("one", make_edit(), head='modules = ["sglang/srt/new", "sglang/srt/single.py"]')
    checkout.module("sglang/srt/new/__init__.py")
    checkout.module("sglang/srt/single.py")
    path = tmp_path / "trees" / "dev"
    checkout.ok("develop", "--tree", str(path))
    return path


def run_in(tree: Path) -> str:
    # Bytecode counts as fresh when size and second agree, as they may for two quick edits.
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True
    ).stdout


def snapshot(tree: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(tree)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in tree.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_a_program_sees_the_fork(checkout, tree: Path) -> None:
    assert run_in(tree) == "1.2.3+opt.7 1.2.3+opt.7 1\n['sglang-hello']\n"
    assert (tree / "sglang/srt/new").is_symlink()
    assert (tree / "sglang/srt/single.py").is_symlink()
    assert os.access(tree / "sglang/srt/run.sh", os.X_OK)
    checkout.module("sglang/srt/new/__init__.py", "VALUE = 2\n")
    assert run_in(tree).startswith("1.2.3+opt.7 1.2.3+opt.7 2\n")


def test_the_release_itself_stays_pristine(checkout, tree: Path, scheduler_source: str) -> None:
    assert "self.count()" in (tree / "sglang/srt/scheduler.py").read_text()
    pristine = checkout.pristine / "sglang/srt/scheduler.py"
    assert pristine.read_text() == scheduler_source


def test_a_second_run_writes_nothing(checkout, tree: Path) -> None:
    before = snapshot(tree)
    before.pop(".fork-tree.json")
    text = checkout.ok("develop", "--tree", str(tree))
    after = snapshot(tree)
    after.pop(".fork-tree.json")
    assert after == before
    assert "wrote" not in text
    assert "linked" not in text


def test_only_what_changed_is_written(checkout, tree: Path, make_edit) -> None:
    checkout.topic("two", make_edit(file="sglang/srt/cache.py", scope="evict", lines="n += 1"))
    before = snapshot(tree)
    text = checkout.ok("develop", "--tree", str(tree))
    after = snapshot(tree)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {
        "sglang/srt/cache.py",
        "sglang-1.2.3+opt.7.dist-info/licenses/CHANGED-FILES",
        "sglang-1.2.3+opt.7.dist-info/RECORD",
        ".fork-tree.json",
    }
    assert "wrote sglang/srt/cache.py" in text


def test_what_a_topic_did_is_taken_back_with_it(
    checkout, tree: Path, scheduler_source: str
) -> None:
    (checkout.root / "patches" / "series").write_text("")
    text = checkout.ok("develop", "--tree", str(tree))
    assert "took back sglang/srt/new" in text
    assert "patches/one.toml is not in patches/series: left out (--also one takes it)" in text
    assert (tree / "sglang/srt/scheduler.py").read_text() == scheduler_source
    assert not (tree / "sglang/srt/new").exists()
    assert (checkout.root / "python/sglang/srt/new/__init__.py").is_file()


def test_a_package_is_linked_by_file_and_as_a_whole_in_turn(
    checkout, tree: Path, make_edit
) -> None:
    checkout.module("sglang/srt/new/other.py")
    by_file = '["sglang/srt/new/__init__.py", "sglang/srt/new/other.py", "sglang/srt/single.py"]'
    whole = '["sglang/srt/new", "sglang/srt/single.py"]'
    for modules, is_link in ((by_file, False), (whole, True), (by_file, False)):
        checkout.topic("one", make_edit(), listed=False, head=f"modules = {modules}")
        checkout.ok("develop", "--tree", str(tree))
        assert (tree / "sglang/srt/new").is_symlink() == is_link
        assert (tree / "sglang/srt/new/other.py").is_symlink() != is_link
        assert run_in(tree).startswith("1.2.3+opt.7 1.2.3+opt.7 1\n")


def test_a_change_made_in_the_tree_is_not_lost(checkout, tree: Path) -> None:
    edited = tree / "sglang/srt/scheduler.py"
    edited.write_text(edited.read_text() + "# mine\n")
    before = snapshot(tree)
    text = checkout.fails("develop", "--tree", str(tree))
    assert f"{edited}: was changed by hand in the tree" in text
    assert "--discard" in text
    assert snapshot(tree) == before
    checkout.ok("develop", "--tree", str(tree), "--discard")
    assert "# mine" not in edited.read_text()


def test_a_folder_of_someone_elses_is_left_alone(checkout, make_edit, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    text = checkout.fails("develop", "--tree", str(tmp_path / "mine"))
    assert "not a tree made by this command" in text
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]


def test_a_broken_patch_leaves_the_tree_as_it_was(checkout, tree: Path, make_edit) -> None:
    checkout.topic("two", make_edit(scope="Scheduler.gone"))
    before = snapshot(tree)
    assert "anchor is gone" in checkout.fails("develop", "--tree", str(tree))
    assert snapshot(tree) == before


def test_an_interrupted_run_leaves_no_tree(checkout, tree: Path, tmp_path: Path, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fork.tree._link", stop)
    other = tmp_path / "trees" / "other"
    with pytest.raises(KeyboardInterrupt):
        checkout.run("develop", "--tree", str(other))
    assert [path for path in other.parent.iterdir() if path.is_dir()] == [tree]


def test_runs_at_the_same_time_make_one_tree(checkout, tree: Path) -> None:
    shutil.rmtree(tree)
    shutil.rmtree(checkout.pristine)
    command = [sys.executable, "-m", "fork", "develop", "--tree", str(tree)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "tools")}
    running = [subprocess.Popen(command, cwd=checkout.root, env=env) for _ in range(4)]
    assert [process.wait() for process in running] == [0, 0, 0, 0]
    assert [path for path in tree.parent.iterdir() if path.is_dir()] == [tree]
    assert "self.count()" in (tree / "sglang/srt/scheduler.py").read_text()


def test_another_release_makes_the_tree_anew(checkout, tree: Path, make_release, make_edit) -> None:
    wheel = make_release(checkout.wheel.parent, "1.2.4")
    checkout.pin("1.2.4", wheel)
    checkout.cache(wheel)
    checkout.ok("develop", "--tree", str(tree))
    assert run_in(tree).startswith("1.2.4+opt.7 1.2.4+opt.7 1\n")
    assert not (tree / "sglang-1.2.3+opt.7.dist-info").exists()


def test_without_a_tree_named_it_is_the_editable_installs(checkout, make_edit) -> None:
    checkout.topic("one", make_edit())
    checkout.ok("develop")
    [made] = (checkout.root / "build" / "editable").glob("*/sglang")
    assert "self.count()" in (made / "srt/scheduler.py").read_text()
    assert not list(made.parent.glob("*.dist-info")), "the installed dist-info is in site-packages"
