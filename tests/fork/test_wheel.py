# SPDX-License-Identifier: Apache-2.0
"""The wheels the backend packs: RECORD, metadata, contents, and nothing half written."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest

from fork import backend

INFO = "sglang-1.2.3+opt.7.dist-info"


@pytest.fixture
def ready(checkout, make_edit, monkeypatch):
    checkout.topic("one", make_edit(), head='modules = ["sglang/srt/new"]')
    checkout.module("sglang/srt/new/__init__.py")
    checkout.module('sglang/srt/new/E=8,"N"=2.json', "{}")
    checkout.module("sglang/srt/new/__pycache__/x.cpython-311.pyc")
    (checkout.root / "NOTICE").write_text("Notice.\n")
    monkeypatch.chdir(checkout.root)
    return checkout


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        assert len(names) == len(set(names))
        return {name: archive.read(name) for name in names}


def check_record(files: dict[str, bytes]) -> None:
    """Every member but RECORD has a row with its SHA-256 and size, and there are no other rows."""
    rows = list(csv.reader(io.StringIO(files[f"{INFO}/RECORD"].decode(), newline="")))
    assert {row[0] for row in rows} == set(files)
    assert len(rows) == len(files)
    for name, digest, size in rows:
        if name == f"{INFO}/RECORD":
            assert (digest, size) == ("", "")
            continue
        kind, _, value = digest.partition("=")
        raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
        assert (kind, raw) == ("sha256", hashlib.sha256(files[name]).digest())
        assert int(size) == len(files[name])


def test_the_wheel_holds_the_release_our_edits_and_our_modules(ready, tmp_path: Path) -> None:
    name = backend.build_wheel(str(tmp_path))
    assert name == ready.wheel.name.replace("1.2.3", "1.2.3+opt.7")
    files = contents(tmp_path / name)
    check_record(files)
    with zipfile.ZipFile(ready.wheel) as archive:
        for member in archive.namelist():
            if member.startswith("sglang/") and "scheduler" not in member and "_ver" not in member:
                assert files[member] == archive.read(member)
    assert b"        self.count()\n" in files["sglang/srt/scheduler.py"]
    assert b'__version__ = version = "1.2.3+opt.7"' in files["sglang/_version.py"]
    assert files['sglang/srt/new/E=8,"N"=2.json'] == b"{}"
    assert not [member for member in files if "__pycache__" in member or "1.2.3.dist" in member]
    with zipfile.ZipFile(tmp_path / name) as archive:
        assert archive.getinfo("sglang/srt/run.sh").external_attr >> 16 == 0o100755


def test_metadata_is_upstreams_but_for_the_version(ready, tmp_path: Path) -> None:
    files = contents(tmp_path / backend.build_wheel(str(tmp_path)))
    message = BytesParser().parsebytes(files[f"{INFO}/METADATA"])
    assert message["Version"] == "1.2.3+opt.7"
    assert message.get_all("Requires-Dist") == [
        "packaging",
        'accelerator-kernels==9.9; sys_platform == "none"',
    ]
    assert message.get_all("License-File") == ["LICENSE", "CHANGED-FILES", "NOTICE"]
    assert message.get_payload() == "Version: 1.2.3 is described here.\n"
    assert files[f"{INFO}/entry_points.txt"] == b"[console_scripts]\nsglang-hello = sglang:hello\n"
    changes = files[f"{INFO}/licenses/CHANGED-FILES"].decode()
    assert "  sglang/srt/scheduler.py (one)\n" in changes
    assert "  sglang/srt/new/__init__.py\n" in changes


def test_prepared_metadata_is_what_the_wheel_has(ready, tmp_path: Path) -> None:
    files = contents(tmp_path / backend.build_wheel(str(tmp_path)))
    for hook in (
        backend.prepare_metadata_for_build_wheel,
        backend.prepare_metadata_for_build_editable,
    ):
        folder = tmp_path / hook.__name__
        assert hook(str(folder)) == INFO
        prepared = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        assert prepared == {
            name: data
            for name, data in files.items()
            if name.startswith(INFO) and name != f"{INFO}/RECORD"
        }


def test_the_editable_wheel_is_a_path_line_and_metadata(ready, tmp_path: Path) -> None:
    files = contents(tmp_path / backend.build_editable(str(tmp_path)))
    check_record(files)
    outside = {name: data for name, data in files.items() if not name.startswith(INFO)}
    [(name, line)] = outside.items()
    assert name == "__editable__.sglang.pth"
    tree = Path(line.decode().removesuffix("\n"))
    assert tree.is_absolute()
    assert (tree / "sglang/srt/new").resolve() == ready.root / "python/sglang/srt/new"
    assert b"import" not in line, "a .pth line that starts with import would run code"


def test_two_builds_give_the_same_bytes(ready, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    name = backend.build_wheel(str(tmp_path / "a"))
    backend.build_wheel(str(tmp_path / "b"))
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    ready.ok("build")
    assert (ready.root / "dist" / name).read_bytes() == (tmp_path / "a" / name).read_bytes()


def test_a_failure_is_readable_and_leaves_no_wheel(ready, make_edit, tmp_path: Path) -> None:
    ready.topic("two", make_edit(scope="Scheduler.gone"))
    out = tmp_path / "out"
    out.mkdir()
    ready.capture.readouterr()
    with pytest.raises(SystemExit) as stopped:
        backend.build_wheel(str(out))
    assert stopped.value.code == 1
    assert ready.capture.readouterr().err.startswith("fork: patches/two.toml edit 1")
    assert not list(out.iterdir())


def test_a_build_that_dies_half_way_leaves_no_wheel(ready, tmp_path: Path, monkeypatch) -> None:
    def fail(*_: object) -> dict[str, bytes]:
        raise OSError("disk full")

    monkeypatch.setattr("fork.wheel.dist_info_files", fail)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(OSError, match="disk full"):
        backend.build_wheel(str(out))
    assert not list(out.iterdir())


def test_config_settings(ready, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/nonexistent")
    assert backend.build_wheel(str(tmp_path), {"wheel": str(ready.wheel)})
    with pytest.raises(SystemExit):
        backend.build_wheel(str(tmp_path), {"weel": "x"})
    assert "unknown config setting 'weel'" in ready.capture.readouterr().err


def test_an_sdist_is_refused_with_the_reason(ready, tmp_path: Path) -> None:
    with pytest.raises(backend.UnsupportedOperation, match="no sdist"):
        backend.build_sdist(str(tmp_path))


def test_a_wheel_of_another_version_is_refused(checkout, make_release) -> None:
    """A wheel whose name says 1.2.4 and whose metadata says otherwise."""
    path = make_release(checkout.wheel.parent, "1.2.4")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text.replace(b"\nVersion: 1.2.4", b"\nVersion: 1.2.9"))
    checkout.pin("1.2.4", path)
    assert "METADATA has 0 lines 'Version: 1.2.4'" in checkout.fails("build", "--wheel", str(path))
