# SPDX-License-Identifier: Apache-2.0
"""Reads the upstream wheel and writes metadata of ours in its shape."""

from __future__ import annotations

import base64
import csv
import fcntl
import hashlib
import io
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fork.errors import ForkError
from fork.repo import Repo, Upstream, WheelPin

PACKAGE = "sglang"
VERSION_FILE = "sglang/_version.py"


def pristine_dir(repo: Repo, pin: WheelPin) -> Path:
    """Where the release is unpacked, untouched: holds `sglang/` and its dist-info."""
    return repo.build / "upstream" / pin.stem


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on the file `path`, for programs that share `build/`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def unpack(wheel: Path, target: Path) -> Path:
    """Unpacks `wheel` to `target` unless it is there; an interrupted run leaves no `target`."""
    if target.is_dir():
        return target
    with locked(target.parent / ".lock"):
        if target.is_dir():
            return target
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
        try:
            try:
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(scratch)
            except zipfile.BadZipFile as error:
                raise ForkError(f"not a wheel: {error}", where=str(wheel)) from None
            os.chmod(scratch, 0o755)
            os.replace(scratch, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def upstream_dist_info(upstream: Upstream) -> str:
    return f"{upstream.name}-{upstream.version}.dist-info"


def fork_dist_info(upstream: Upstream) -> str:
    return f"{upstream.name}-{upstream.fork_version}.dist-info"


def version_module(upstream: Upstream) -> bytes:
    """`sglang/_version.py`, which `sglang.version` reads, with the fork's version in it."""
    numbers = ", ".join(upstream.version.split("."))
    if not re.fullmatch(r"\d+(, \d+)*", numbers):
        numbers = ", ".join(repr(part) for part in upstream.version.split("."))
    return (
        "# SPDX-License-Identifier: Apache-2.0\n"
        "# Written by the fork's build from UPSTREAM.toml.\n"
        f'__version__ = version = "{upstream.fork_version}"\n'
        f'__version_tuple__ = version_tuple = ({numbers}, "{upstream.local}")\n'
        "__commit_id__ = commit_id = None\n"
    ).encode()


def fork_metadata(metadata: bytes, upstream: Upstream) -> bytes:
    """Upstream's METADATA with the fork's version; requirements and the rest stay as they are.

    Raises:
        ForkError: the header has no `Version` line with the pinned version, as in a wheel of
            another release.
    """
    head, gap, body = metadata.partition(b"\n\n")
    line = f"Version: {upstream.version}".encode()
    changed, count = re.subn(
        rb"(?m)^" + re.escape(line) + rb"$", f"Version: {upstream.fork_version}".encode(), head
    )
    if count != 1:
        raise ForkError(
            f"METADATA has {count} lines {line.decode()!r}, not one",
            remedy="the wheel is not the release that UPSTREAM.toml pins",
        )
    return changed + gap + body


def record_row(path: str, data: bytes) -> tuple[str, str, str]:
    """A RECORD row: path, `sha256=` with URL-safe base64 without padding, size in bytes."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return (path, f"sha256={digest}", str(len(data)))


def render_record(rows: Iterable[tuple[str, str, str]], record_path: str) -> bytes:
    """RECORD as CSV (paths may hold commas and quotes); its own row has no hash and no size."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([*rows, (record_path, "", "")])
    return out.getvalue().encode()
