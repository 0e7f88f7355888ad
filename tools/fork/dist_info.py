# SPDX-License-Identifier: Apache-2.0
"""The fork's dist-info: upstream's files with the fork's version, and a list of what we changed."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Iterable

from fork.errors import ForkError
from fork.plan import Plan
from fork.repo import Upstream

CHANGES_FILE = "CHANGED-FILES"
_OWN_LICENSE_FILES = ("NOTICE",)


def fork_dist_info(upstream: Upstream) -> str:
    """Name of the dist-info folder of what this builds."""
    return f"{upstream.name}-{upstream.fork_version}.dist-info"


def upstream_dist_info(upstream: Upstream) -> str:
    """Name of the dist-info folder in the upstream wheel."""
    return f"{upstream.name}-{upstream.version}.dist-info"


def dist_info_files(plan: Plan) -> dict[str, bytes]:
    """Every file of the fork's dist-info but RECORD, by path in the wheel.

    Requirements, console scripts and licence are upstream's. Added are our NOTICE and, as the
    Apache licence asks of changed files, a list of those the fork changed and added.
    """
    source = plan.pristine / upstream_dist_info(plan.upstream)
    folder = fork_dist_info(plan.upstream)
    files = {
        path.relative_to(source).as_posix(): path.read_bytes()
        for path in sorted(source.rglob("*"))
        if path.is_file() and path.name != "RECORD"
    }
    licenses = {CHANGES_FILE: changed_files(plan)}
    for name in _OWN_LICENSE_FILES:
        if (plan.repo.root / name).is_file():
            licenses[name] = (plan.repo.root / name).read_bytes()
    files.update({f"licenses/{name}": data for name, data in licenses.items()})
    files["METADATA"] = fork_metadata(files["METADATA"], plan.upstream, sorted(licenses))
    files["WHEEL"] = re.sub(
        rb"(?m)^Generator: .*$", b"Generator: sglang-fork-tools", files["WHEEL"], count=1
    )
    return {f"{folder}/{name}": data for name, data in files.items()}


def fork_metadata(metadata: bytes, upstream: Upstream, license_files: Iterable[str] = ()) -> bytes:
    """Upstream's METADATA with the fork's version; requirements and the rest stay as they are.

    Raises:
        ForkError: the header has no `Version` line with the pinned version, as in a wheel of
            another release.
    """
    head, gap, body = metadata.partition(b"\n\n")
    line = f"Version: {upstream.version}"
    changed, count = re.subn(
        rf"(?m)^{re.escape(line)}$".encode(), f"Version: {upstream.fork_version}".encode(), head
    )
    if count != 1:
        raise ForkError(
            f"METADATA has {count} lines {line!r}, not one",
            remedy="the wheel is not the release that UPSTREAM.toml pins",
        )
    for name in license_files:
        changed += f"\nLicense-File: {name}".encode()
    return changed + gap + body


def changed_files(plan: Plan) -> bytes:
    """Which upstream files differ from the release and which are new, with the topics they are of."""
    by_file: dict[str, list[str]] = {name: [] for name in plan.edited}
    for topic in plan.topics:
        for name in dict.fromkeys(edit.file for edit in topic.edits):
            by_file[name].append(topic.name)
    upstream = plan.upstream
    lines = [
        f"{upstream.name} {upstream.fork_version} is {upstream.version} with these changes.",
        "",
        "Changed files:",
        *(f"  {name} ({', '.join(topics)})" for name, topics in sorted(by_file.items())),
        *(f"  {name} (version)" for name in sorted(plan.generated)),
        "",
        "Added files:",
        *(f"  {name}" for name in sorted(plan.added_files())),
    ]
    return ("\n".join(lines) + "\n").encode()


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
