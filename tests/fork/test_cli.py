# SPDX-License-Identifier: Apache-2.0
"""The command line as a user starts it."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def fork(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fork", *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(TOOLS)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_outside_a_checkout(tmp_path: Path) -> None:
    done = fork(tmp_path, "check")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("fork: no UPSTREAM.toml with a patches/ beside it in ")


def test_from_a_folder_of_the_checkout(checkout) -> None:
    done = fork(checkout.root / "python", "check")
    assert done.returncode == 0, done.stderr
    assert "0 topics, 0 edits" in done.stdout


def test_an_old_python_is_told_so(monkeypatch) -> None:
    monkeypatch.setattr("sys.version_info", (3, 10, 4))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer, this is 3\.10"):
        runpy.run_path(str(TOOLS / "fork" / "__init__.py"))


def test_unknown_commands_and_none(tmp_path: Path) -> None:
    for arguments in ((), ("fetsh",)):
        done = fork(tmp_path, *arguments)
        assert done.returncode == 2
        assert "COMMAND" in done.stderr


def test_help_names_every_command(tmp_path: Path) -> None:
    text = fork(tmp_path, "--help").stdout
    for command in ("fetch", "check", "build", "develop", "export", "bump"):
        assert f"\n    {command} " in text
