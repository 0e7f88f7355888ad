# SPDX-License-Identifier: Apache-2.0
"""A cache of generated model folders.

A folder is complete exactly when it holds ``build-manifest.json``: everything is written into
a sibling whose name starts with a dot, the manifest last, and then renamed. The manifest
records what the folder was made from and the SHA-256 of every file, so that a folder that was
damaged, or made by another recipe, is noticed and made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

MANIFEST = "build-manifest.json"
REPOSITORY = Path(__file__).resolve().parents[2]
DEFAULT_ROOT = REPOSITORY / "build" / "models"


class ModelFolderError(RuntimeError):
    """A model folder could not be made or does not hold what it should."""


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file as lower-case hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def damage(folder: Path, recipe: Mapping[str, Any]) -> str | None:
    """Says why ``folder`` cannot be used for ``recipe``; ``None`` when it can.

    Reads every file (about half a second for 270 MB).
    """
    manifest_path = folder / MANIFEST
    if not folder.is_dir():
        return "it does not exist"
    try:
        manifest = json.loads(manifest_path.read_text(encoding="utf-8"))
        recorded, files = manifest["recipe"], manifest["files"]
    except FileNotFoundError:
        return f"it has no {MANIFEST}"
    except (ValueError, KeyError, TypeError) as error:
        return f"{MANIFEST} cannot be read ({error!r})"
    if recorded != json.loads(json.dumps(recipe)):
        return "it was made by another recipe"
    for name, digest in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if sha256_of(path) != digest:
            return f"{name} does not have the recorded SHA-256"
    return None


def ensure(
    folder: Path,
    recipe: Mapping[str, Any],
    make: Callable[[Path], None],
    report: Callable[[str], None] = lambda line: None,
) -> Path:
    """Returns ``folder``, made by ``make`` unless an undamaged one is there.

    Args:
        folder: where the model shall be. An existing folder without a manifest was not made
            here and is never replaced.
        recipe: JSON-serialisable description of all that determines the content.
        make: called with an empty folder to fill; what it raises is passed on and nothing
            is left behind.
        report: receives one line for each step.

    Two processes that ask for the same folder take turns, so the second finds it ready.

    Raises:
        ModelFolderError: ``folder`` exists and is not ours.
    """
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / f".{folder.name}.lock"):
        reason = damage(folder, recipe)
        if reason is None:
            report(f"{folder.name}: verified, reused")
            return folder
        if folder.exists():
            if not (folder / MANIFEST).is_file() and any(folder.iterdir()):
                raise ModelFolderError(
                    f"{folder} exists but holds no {MANIFEST}, so it was not made by this "
                    "tool; name another folder or move it away"
                )
            report(f"{folder.name}: made anew, since {reason}")
        _sweep(folder)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.making-", dir=folder.parent))
        try:
            make(staging)
            _seal(staging, recipe)
            if folder.exists():
                shutil.rmtree(folder)
            staging.chmod(0o755)
            staging.rename(folder)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        report(f"{folder.name}: made in {folder}")
        return folder


def _seal(folder: Path, recipe: Mapping[str, Any]) -> None:
    files = {
        path.relative_to(folder).as_posix(): sha256_of(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    for name in files:
        (folder / name).chmod(0o644)  # safetensors writes files that only their owner can read
    text = json.dumps({"recipe": dict(recipe), "files": files}, indent=2, sort_keys=True)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _sweep(folder: Path) -> None:
    """Removes what an interrupted run left; the lock is held, so nobody is using it."""
    for stale in folder.parent.glob(f".{folder.name}.making-*"):
        shutil.rmtree(stale, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def cache_root() -> Path:
    """Returns the folder that holds generated models: ``$SGLANG_OPT_MODELS`` or ``build/models``."""
    return Path(os.environ.get("SGLANG_OPT_MODELS") or DEFAULT_ROOT)
