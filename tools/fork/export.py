# SPDX-License-Identifier: Apache-2.0
"""Writes the topics as a `git am`-able series against upstream's own repository layout.

The wheel's `sglang/` is `python/sglang/` there, and our `tests/NAME` become
`test/registered/unit/NAME`, where upstream keeps tests that need no accelerator. Each topic is one
commit with its edits, its added modules and its tests. What the build generates
(`sglang/_version.py`) is not tracked upstream and not exported.

The series is made by git itself in a scratch repository that holds only the files touched: a patch
names its pre-images by content hash, so it applies to the full tree (also with `git am -3`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from fork.errors import ForkError
from fork.patches import Topic
from fork.plan import edits_by_file, files_below, make_plan, module_files
from fork.repo import Repo, Upstream

PACKAGE_ROOT = "python"
TEST_ROOT = "test/registered/unit"


def export_series(
    repo: Repo, upstream: Upstream, pristine: Path, topics: Sequence[Topic], folder: Path
) -> list[Path]:
    """Writes one patch a topic into `folder`, replacing the series that was there.

    The author is git's configured user for the checkout; the dates are the upstream release's, so
    that the same patches give the same files.

    Raises:
        ForkError: a topic does not apply, git has no user, or `folder` holds other files.
    """
    make_plan(repo, upstream, pristine, topics)  # reports every problem before git sees any
    if not topics:
        raise ForkError("there is no topic to export", where="patches/series")
    stale = _stale_patches(folder)
    author = _author(repo)
    dates = _Dates(pristine, upstream)
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch) / "work"
        work.mkdir()
        git = _Git(work, author)
        git.run("init", "--quiet", "--initial-branch=main")
        for name in edits_by_file(topics):
            _copy(pristine / name, work / PACKAGE_ROOT / name)
        git.commit(f"{upstream.name} {upstream.version}", dates.at(0))
        written: set[str] = set()
        for number, topic in enumerate(topics, 1):
            _write_topic(repo, upstream, pristine, topics[:number], work, written)
            git.commit(message_of(topic), dates.at(number))
        made = Path(scratch) / "patches"
        git.run(
            "format-patch", "--quiet", "--zero-commit", "--no-signature", "--no-renames",
            "--full-index", "--output-directory", str(made), f"HEAD~{len(topics)}",
        )  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        for path in stale:
            path.unlink()
        return [Path(shutil.copy(path, folder / path.name)) for path in sorted(made.iterdir())]


def message_of(topic: Topic) -> str:
    """Commit message: the title, then why, where it was forwarded and when it can go."""
    paragraphs = [topic.title]
    for head, text in (
        ("", topic.why),
        ("Forwarded: ", topic.forwarded),
        ("Retire when: ", topic.retire_when),
    ):
        words = head + " ".join(text.split())
        paragraphs.append(textwrap.fill(words, 72, break_long_words=False, break_on_hyphens=False))
    return "\n\n".join(paragraphs) + "\n"


def exported_tests(repo: Repo, topic: Topic) -> Iterator[tuple[str, Path]]:
    """The topic's tests: path in upstream's layout and file in the repository.

    Raises:
        ForkError: a path in `tests` does not exist.
    """
    for name in topic.tests:
        path = repo.root / name
        if not path.exists():
            raise ForkError(f"tests: no such file or folder {name}", where=topic.where)
        files = [path] if path.is_file() else [found for _, found in files_below(path, path)]
        for file in files:
            inner = file.relative_to(repo.root / "tests").as_posix()
            yield f"{TEST_ROOT}/{inner}", file


def _write_topic(
    repo: Repo,
    upstream: Upstream,
    pristine: Path,
    topics: Sequence[Topic],
    work: Path,
    written: set[str],
) -> None:
    """Brings `work` from the state before the last of `topics` to the state after it."""
    plan = make_plan(repo, upstream, pristine, topics)
    for name, data in plan.edited.items():
        (work / PACKAGE_ROOT / name).write_bytes(data)
    topic = topics[-1]
    for module in topic.modules:
        for name, source in module_files(repo, module):
            _copy(source, work / PACKAGE_ROOT / name)
    for name, source in exported_tests(repo, topic):
        if name not in written:  # shared support goes with the first topic that names it
            _copy(source, work / name)
            written.add(name)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def _stale_patches(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    stale = list(folder.glob("[0-9][0-9][0-9][0-9]-*.patch"))
    others = sorted(path.name for path in folder.iterdir() if path not in stale)
    if others:
        raise ForkError(
            f"holds files that are no patches ({others[0]}); nothing was written",
            where=str(folder),
            remedy="choose an empty folder with --output",
        )
    return stale


def _author(repo: Repo) -> dict[str, str]:
    values = {}
    for key in ("name", "email"):
        done = subprocess.run(
            ["git", "-C", str(repo.root), "config", f"user.{key}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        value = os.environ.get(f"GIT_AUTHOR_{key.upper()}") or done.stdout.strip()
        if not value:
            raise ForkError(
                f"git has no user.{key} to author the patches with",
                remedy=f"git config user.{key} ...",
            )
        values[f"GIT_AUTHOR_{key.upper()}"] = values[f"GIT_COMMITTER_{key.upper()}"] = value
    return values


class _Dates:
    """The release's own date, one second later for each patch, in UTC."""

    def __init__(self, pristine: Path, upstream: Upstream) -> None:
        record = pristine / f"{upstream.name}-{upstream.version}.dist-info" / "METADATA"
        self._start = int(record.stat().st_mtime)

    def at(self, number: int) -> str:
        return f"@{self._start + number} +0000"


class _Git:
    """git in a scratch repository, without the user's or system's configuration."""

    def __init__(self, folder: Path, author: dict[str, str]) -> None:
        self._folder = folder
        self._env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
            **author,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
        }

    def run(self, *arguments: str, **env: str) -> None:
        done = subprocess.run(
            ["git", *arguments],
            cwd=self._folder, env={**self._env, **env},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ForkError(f"git {arguments[0]} failed: {done.stderr.strip()}")

    def commit(self, message: str, date: str) -> None:
        self.run("add", "--all", "--force")
        self.run(
            "commit", "--quiet", "--allow-empty", "--cleanup=verbatim", "--message", message,
            GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE=date,
        )  # fmt: skip
