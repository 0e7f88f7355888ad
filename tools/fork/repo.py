# SPDX-License-Identifier: Apache-2.0
"""The repository: where its parts are, and which upstream release it pins."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fork.errors import ForkError

UPSTREAM_FILE = "UPSTREAM.toml"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LOCAL = re.compile(r"[a-z0-9]+(\.[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class WheelPin:
    """A wheel of the upstream release: its file name and the SHA-256 of its bytes (hex)."""

    file: str
    sha256: str

    @property
    def stem(self) -> str:
        return self.file.removesuffix(".whl")

    @property
    def tags(self) -> str:
        """The compatibility tags as in the file name, for example `cp311-cp311-linux_x86_64`."""
        return self.stem.split("-", 2)[2]


@dataclass(frozen=True, slots=True)
class Upstream:
    """What `UPSTREAM.toml` pins. `local` is the fork's own version label, such as `opt.1`."""

    name: str
    version: str
    local: str
    wheels: tuple[WheelPin, ...]

    @property
    def fork_version(self) -> str:
        return f"{self.version}+{self.local}"


@dataclass(frozen=True, slots=True)
class Repo:
    """Paths of one checkout. Everything the build makes is below `build`."""

    root: Path

    @property
    def upstream_file(self) -> Path:
        return self.root / UPSTREAM_FILE

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def series(self) -> Path:
        return self.patches / "series"

    @property
    def python(self) -> Path:
        return self.root / "python"

    @property
    def build(self) -> Path:
        return self.root / "build"

    def upstream(self) -> Upstream:
        """Reads `UPSTREAM.toml`.

        Raises:
            ForkError: the file is missing, is not TOML, or a key is missing, unknown or malformed.
        """
        return parse_upstream(read_toml(self.upstream_file), self.upstream_file.name)


def find_repo(start: Path | None = None) -> Repo:
    """The checkout that holds `start` (default: the current directory).

    Raises:
        ForkError: no directory from `start` upwards holds UPSTREAM.toml and patches/.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / UPSTREAM_FILE).is_file() and (folder / "patches").is_dir():
            return Repo(folder)
    raise ForkError(
        f"no {UPSTREAM_FILE} with a patches/ beside it in {here} or above",
        remedy="run this from a checkout of the fork, or name one with --repo DIR",
    )


def read_toml(path: Path) -> dict[str, Any]:
    """Parses a TOML file; a missing or malformed one is a ForkError that names it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ForkError("no such file", where=str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ForkError(f"not valid TOML: {error}", where=str(path)) from None


def reject_unknown(table: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
    """Raises ForkError for a key outside `allowed`: a misspelt key must not be ignored."""
    unknown = sorted(set(table) - set(allowed))
    if unknown:
        raise ForkError(
            f"unknown key {', '.join(map(repr, unknown))}",
            where=where,
            remedy=f"allowed keys: {', '.join(allowed)}",
        )


def require_text(table: Mapping[str, Any], key: str, where: str) -> str:
    """The non-empty string at `key`, else ForkError."""
    value = table.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ForkError(f"{key} must be a non-empty string, not {value!r}", where=where)
    return value


def parse_upstream(table: Mapping[str, Any], where: str) -> Upstream:
    """Checks the parsed `UPSTREAM.toml`; raises ForkError naming the bad key."""
    reject_unknown(table, ("name", "version", "local", "wheel"), where)
    name, version, local = (require_text(table, key, where) for key in ("name", "version", "local"))
    if not _LOCAL.fullmatch(local):
        raise ForkError(
            f"local must be a PEP 440 local label like 'opt.1', not {local!r}", where=where
        )
    wheels = table.get("wheel")
    if not isinstance(wheels, list) or not wheels:
        raise ForkError("needs at least one [[wheel]]", where=where)
    pins = []
    for entry in wheels:
        reject_unknown(entry, ("file", "sha256"), where)
        file, sha256 = require_text(entry, "file", where), require_text(entry, "sha256", where)
        if not (file.startswith(f"{name}-{version}-") and file.endswith(".whl")):
            raise ForkError(f"{file!r} is no wheel file of {name} {version}", where=where)
        if not _SHA256.fullmatch(sha256):
            raise ForkError(f"sha256 of {file} must be 64 hex digits, not {sha256!r}", where=where)
        pins.append(WheelPin(file, sha256))
    return Upstream(name, version, local, tuple(pins))


def render_upstream(upstream: Upstream) -> str:
    """The text of `UPSTREAM.toml` for `upstream`; `parse_upstream` reads it back."""
    lines = [
        "# SPDX-License-Identifier: Apache-2.0",
        "# The release this fork is built on, and the fork's own local version label.",
        "# Written by `python -m fork bump VERSION`; the hashes are those of the package index.",
        f'name = "{upstream.name}"',
        f'version = "{upstream.version}"',
        f'local = "{upstream.local}"',
    ]
    for pin in upstream.wheels:
        lines += ["", "[[wheel]]", f'file = "{pin.file}"', f'sha256 = "{pin.sha256}"']
    return "\n".join(lines) + "\n"
