# SPDX-License-Identifier: Apache-2.0
"""A small made-up release and a checkout that pins it, so that most tests need no network."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import textwrap
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.tags import sys_tags

from fork.cli import main
from fork.dist_info import record_row, render_record
from fork.fetch import CACHE_VARIABLE, cache_dir
from fork.repo import find_repo
from fork.work import obtain

VERSION = "1.2.3"
SCHEDULER = '''\
"""Picks what runs next."""
from __future__ import annotations

import os


class Scheduler:
    """Holds the queue."""

    def __init__(self, size):
        self.size = size
        # Requests that wait.
        self.waiting = []

    @property
    def load(self):
        return len(self.waiting) / self.size

    def step(self):
        if self.waiting and not self.paused:
            self.run(self.waiting.pop())
        elif self.paused:
            self.idle()
        for request in self.waiting:
            request.age += 1
        return True


def make(size):
    with os.scandir(".") as entries:
        found = list(entries)
    return Scheduler(size)
'''
FILES = {
    "sglang/__init__.py": "from sglang.version import __version__\n",
    "sglang/version.py": "from sglang._version import __version__\n",
    "sglang/_version.py": f"__version__ = {VERSION!r}\n",
    "sglang/srt/__init__.py": "",
    "sglang/srt/scheduler.py": SCHEDULER,
    "sglang/srt/cache.py": "LIMIT = 1\n\n\ndef evict(n):\n    return n\n",
    "sglang/srt/configs/E=8,N=2.json": "{}\n",
    "sglang/srt/run.sh": "#!/bin/sh\n",
}
METADATA = """\
Metadata-Version: 2.4
Name: sglang
Version: {version}
License: Apache License
        Version 2.0
License-File: LICENSE
Requires-Dist: packaging
Requires-Dist: accelerator-kernels==9.9; sys_platform == "none"
Provides-Extra: more

Version: {version} is described here.
"""


def tag() -> str:
    """A tag like upstream's that fits the running interpreter."""
    return next(str(tag) for tag in sys_tags() if tag.platform.startswith("manylinux_2_"))


def write_release(
    folder: Path, version: str = VERSION, files: dict[str, str] | None = None
) -> Path:
    """Writes a wheel of the made-up release, with one executable file, and gives its path."""
    info = f"sglang-{version}.dist-info"
    members = {
        **(FILES if files is None else files),
        f"{info}/METADATA": METADATA.format(version=version),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test (1)\nRoot-Is-Purelib: false\n"
        f"Tag: {tag()}\n",
        f"{info}/entry_points.txt": "[console_scripts]\nsglang-hello = sglang:hello\n",
        f"{info}/licenses/LICENSE": "Apache\n",
    }
    path = folder / f"sglang-{version}-{tag()}.whl"
    rows = [record_row(name, text.encode()) for name, text in members.items()]
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            entry = zipfile.ZipInfo(name, (2026, 1, 2, 3, 4, 6))
            entry.external_attr = (0o100755 if name.endswith(".sh") else 0o100644) << 16
            archive.writestr(entry, text)
        archive.writestr(f"{info}/RECORD", render_record(rows, f"{info}/RECORD"))
    return path


def sha256(data: bytes | str) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


@dataclass
class Checkout:
    """A checkout of the fork on the made-up release, and the command line run in it."""

    root: Path
    wheel: Path
    capture: pytest.CaptureFixture[str]

    def run(self, *arguments: str) -> tuple[int, str]:
        """Exit status and everything printed."""
        self.capture.readouterr()
        status = main(["--repo", str(self.root), *arguments])
        out, err = self.capture.readouterr()
        return status, out + err

    def ok(self, *arguments: str) -> str:
        status, text = self.run(*arguments)
        assert status == 0, text
        return text

    def fails(self, *arguments: str) -> str:
        status, text = self.run(*arguments)
        assert status == 1, text
        return text

    def pin(self, version: str, wheel: Path) -> None:
        (self.root / "UPSTREAM.toml").write_text(
            f'name = "sglang"\nversion = "{version}"\nlocal = "opt.7"\n'
            f'[[wheel]]\nfile = "{wheel.name}"\nsha256 = "{sha256(wheel.read_bytes())}"\n'
        )

    def cache(self, wheel: Path) -> None:
        """Puts a wheel where `fetch` keeps it, so that a test does not wait for pip."""
        kept = cache_dir() / sha256(wheel.read_bytes())[:16] / wheel.name
        kept.parent.mkdir(parents=True)
        shutil.copy(wheel, kept)

    def topic(self, name: str, *edits: str, listed: bool = True, head: str = "") -> None:
        """Writes a patch file; each edit is the TOML below `[[edit]]`, hash and all."""
        text = (
            f'title = "area: {name}"\nwhy = "Because {name}."\nforwarded = "no: a test"\n'
            f'retire_when = "never"\n{head}\n'
        )
        for edit in edits:
            text += "\n[[edit]]\n" + textwrap.dedent(edit).strip() + "\n"
        (self.root / "patches" / f"{name}.toml").write_text(text)
        if listed:
            series = self.root / "patches" / "series"
            series.write_text(series.read_text() + f"{name}\n")

    def module(self, name: str, text: str = "VALUE = 1\n") -> Path:
        path = self.root / "python" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def state(self) -> dict[str, bytes]:
        """Every file of the checkout outside build/, to compare before and after."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and path.relative_to(self.root).parts[0] != "build"
        }

    @property
    def pristine(self) -> Path:
        return self.root / "build" / "upstream" / self.wheel.stem


def edit(
    file: str = "sglang/srt/scheduler.py",
    scope: str = "Scheduler.step",
    at: str = "start",
    lines: str = "self.count()",
    extra: str = "",
    digest: str | None = None,
) -> str:
    """TOML of one edit whose hash is that of the made-up release's file."""
    digest = sha256(FILES.get(file, "")) if digest is None else digest
    return "\n".join(
        [
            f'file = "{file}"',
            f'sha256 = "{digest}"',
            f'in = "{scope}"',
            f'at = "{at}"',
            extra,
            f"lines = '''\n{lines}\n'''",
        ]
    )


@pytest.fixture
def make_edit():
    return edit


@pytest.fixture
def make_release():
    return write_release


@pytest.fixture
def release_files() -> dict[str, str]:
    return FILES


@pytest.fixture
def scheduler_source() -> str:
    return SCHEDULER


@pytest.fixture
def checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Checkout:
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    wheel = write_release(index)
    root = tmp_path / "checkout"
    (root / "patches").mkdir(parents=True)
    (root / "python").mkdir()
    (root / "patches" / "series").write_text("")
    made = Checkout(root, wheel, capsys)
    made.pin(VERSION, wheel)
    made.cache(wheel)
    return made


@pytest.fixture(scope="session")
def release() -> Path:
    """The real release this repository pins, unpacked in build/upstream; fetched if need be."""
    repo = find_repo(Path(__file__).parent)
    return obtain(repo, None, log=print)[2]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs git without the user's configuration, as a test author."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "Test Author")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "author@example.com")

    def run(folder: Path, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
