# SPDX-License-Identifier: Apache-2.0
"""Gets the pinned wheel for this interpreter from the package index, by hash, through pip.

pip is asked so that the user's index, proxy, certificates and constraints hold here too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from fork.errors import ForkError
from fork.repo import Upstream, WheelPin

CACHE_VARIABLE = "SGLANG_FORK_CACHE"
Log = Callable[[str], None]


def cache_dir() -> Path:
    """Where wheels are kept between checkouts: $SGLANG_FORK_CACHE, else the user's cache folder."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sglang-fork"


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes as 64 hex digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def pin_for_interpreter(upstream: Upstream, tags: Iterable[str] | None = None) -> WheelPin:
    """The pinned wheel that fits best.

    Args:
        tags: compatibility tags, best first (default: the running interpreter's).

    Raises:
        ForkError: none fits; the error lists those there are.
    """
    from packaging.tags import sys_tags
    from packaging.utils import parse_wheel_filename

    fitting: dict[str, WheelPin] = {}
    for pin in upstream.wheels:
        fitting.update((str(tag), pin) for tag in parse_wheel_filename(pin.file)[3])
    for tag in tags if tags is not None else map(str, sys_tags()):
        if tag in fitting:
            return fitting[tag]
    python = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
    listed = "\n    ".join(pin.tags for pin in upstream.wheels)
    raise ForkError(
        f"no wheel of {upstream.name} {upstream.version} fits this interpreter "
        f"({python}, {sys.platform})",
        where="UPSTREAM.toml",
        remedy=f"use an interpreter and machine that one of these fits:\n    {listed}",
    )


def fetch(
    upstream: Upstream, pin: WheelPin, *, wheel: Path | None = None, log: Log = lambda _: None
) -> Path:
    """A file with exactly the pinned bytes: `wheel` if given, else cached, else downloaded.

    A cached file is hashed every time; one that does not match is downloaded again.

    Raises:
        ForkError: the given or downloaded file has another hash, or pip cannot get it.
    """
    if wheel is not None:
        if not wheel.is_file():
            raise ForkError("no such file", where=str(wheel))
        _verify(wheel, pin, "give the file that UPSTREAM.toml names, as the package index has it")
        return wheel
    cached = cache_dir() / pin.sha256[:16] / pin.file
    if cached.is_file():
        if sha256_of_file(cached) == pin.sha256:
            return cached
        log(f"{cached} does not match its hash; downloading it again")
    log(f"downloading {pin.file}")
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ForkError(
            f"cannot keep wheels there: {error.strerror}",
            where=str(cached.parent),
            remedy=f"set {CACHE_VARIABLE} to a folder that can be written",
        ) from None
    with tempfile.TemporaryDirectory(dir=cached.parent) as scratch:
        _download(upstream, pin, Path(scratch))
        got = Path(scratch) / pin.file
        if not got.is_file():
            names = ", ".join(sorted(path.name for path in Path(scratch).iterdir())) or "nothing"
            raise ForkError(
                f"pip gave {names} instead",
                where=pin.file,
                remedy=f"fetch that file yourself and pass it with --wheel, or put it at {cached}",
            )
        _verify(got, pin, "the index serves other bytes than were pinned: do not install them")
        os.replace(got, cached)
    return cached


def _verify(path: Path, pin: WheelPin, remedy: str) -> None:
    actual = sha256_of_file(path)
    if actual != pin.sha256:
        raise ForkError(
            f"wrong hash: sha256 is {actual}, UPSTREAM.toml pins {pin.sha256} for {pin.file}",
            where=str(path),
            remedy=remedy,
        )


def _download(upstream: Upstream, pin: WheelPin, folder: Path) -> None:
    python_tag, abi, platform = pin.tags.split("-")
    run_pip(
        "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder),
        "--implementation", python_tag[:2], "--python-version", python_tag[2:], "--abi", abi,
        *(part for name in platform.split(".") for part in ("--platform", name)),
        f"{upstream.name}=={upstream.version}",
    )  # fmt: skip


def run_pip(*arguments: str) -> str:
    """Runs pip of this interpreter and gives its standard output.

    Inside an isolated build pip may be importable only from the real environment: the second try
    leaves out the variables that isolate us.

    Raises:
        ForkError: there is no pip, or it fails; the end of its error output is in the message.
    """
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONNOUSERSITE")}
    tries: list[tuple[list[str], dict[str, str]]] = [
        ([sys.executable, "-m", "pip"], dict(os.environ)),
        ([sys.executable, "-m", "pip"], clean),
    ]
    if found := shutil.which("pip", path=clean.get("PATH")):
        tries.append(([found], clean))
    for command, env in tries:
        done = subprocess.run(
            [*command, "--disable-pip-version-check", *arguments],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        if not done.returncode:
            return done.stdout
        if "No module named pip" not in done.stderr:
            break
    else:
        raise ForkError(
            "no pip found to download with",
            remedy="install pip into this environment, or pass the file with --wheel",
        )
    tail = "\n    ".join(done.stderr.strip().splitlines()[-6:])
    raise ForkError(
        f"`pip {' '.join(arguments)}` failed:\n    {tail}",
        remedy="check the network and pip's index settings, or pass the file with --wheel",
    )
