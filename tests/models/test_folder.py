# SPDX-License-Identifier: Apache-2.0
"""The cache of generated folders: complete, undamaged, or made anew."""

from __future__ import annotations

import json
import multiprocessing
import time

import pytest

from models.folder import MANIFEST, ModelFolderError, ensure

RECIPE = {"recipe": "test/1", "size": 3}


class Maker:
    """Fills a folder and counts how often it had to."""

    def __init__(self, content: str = "weights") -> None:
        self.content = content
        self.calls = 0

    def __call__(self, folder) -> None:
        self.calls += 1
        assert list(folder.iterdir()) == []
        (folder / "sub").mkdir()
        (folder / "sub" / "weights.bin").write_text(self.content)


@pytest.fixture
def target(tmp_path):
    return tmp_path / "model"


def test_an_undamaged_folder_is_reused(target):
    make = Maker()
    assert ensure(target, RECIPE, make) == target
    assert ensure(target, RECIPE, make) == target
    assert make.calls == 1
    assert list(json.loads((target / MANIFEST).read_text())["files"]) == ["sub/weights.bin"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: (d / "sub" / "weights.bin").write_text("weighty"), "SHA-256"),
        (lambda d: (d / "sub" / "weights.bin").unlink(), "missing"),
        (lambda d: (d / MANIFEST).write_text("{"), "cannot be read"),
        (lambda d: (d / MANIFEST).write_text('{"files": {}}'), "cannot be read"),
    ],
)
def test_a_damaged_folder_is_made_anew_and_the_reason_is_said(target, change, reason):
    make, lines = Maker(), []
    ensure(target, RECIPE, make)
    change(target)
    ensure(target, RECIPE, make, lines.append)
    assert make.calls == 2 and any(reason in line for line in lines)
    assert (target / "sub" / "weights.bin").read_text() == "weights"


def test_another_recipe_makes_it_anew(target):
    make = Maker()
    ensure(target, RECIPE, make)
    ensure(target, {**RECIPE, "size": 4}, make)
    assert make.calls == 2


def test_a_folder_that_is_not_ours_is_never_replaced(target):
    target.mkdir()
    (target / "thesis.txt").write_text("three years of work")
    with pytest.raises(ModelFolderError, match="not made by this tool"):
        ensure(target, RECIPE, Maker())
    assert (target / "thesis.txt").read_text() == "three years of work"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_nothing_and_keeps_what_was_there(target, error):
    ensure(target, RECIPE, Maker("old"))

    def fail(folder):
        (folder / "half").write_text("half")
        raise error

    with pytest.raises(error):
        ensure(target, {**RECIPE, "size": 5}, fail)
    assert (target / "sub" / "weights.bin").read_text() == "old"
    assert sorted(p.name for p in target.parent.iterdir()) == [".model.lock", "model"]


def test_what_a_killed_run_left_is_swept_up(target):
    stale = target.parent / ".model.making-dead"
    stale.mkdir(parents=True)
    ensure(target, RECIPE, Maker())
    assert not stale.exists()


def _slow_make(folder) -> None:
    time.sleep(0.3)
    (folder / "made-by").write_text(str(time.monotonic_ns()))


def _ensure_and_read(target, queue) -> None:
    ensure(target, RECIPE, _slow_make)
    queue.put((target / "made-by").read_text())


def test_two_processes_take_turns_and_get_the_same_folder(target):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    both = [context.Process(target=_ensure_and_read, args=(target, queue)) for _ in range(2)]
    for process in both:
        process.start()
    made = [queue.get(timeout=30) for _ in both]
    for process in both:
        process.join(timeout=30)
    assert made[0] == made[1]
