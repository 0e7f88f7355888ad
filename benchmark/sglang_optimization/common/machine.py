# SPDX-License-Identifier: Apache-2.0
"""Facts about the machine and the source tree, for a result file.

Nothing here reveals where files lie on the machine: paths in the recorded
command are cut to what a reader needs to repeat it.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path, PurePath
from typing import Any

REPO_ROOT = Path(__file__).resolve().parents[3]


def machine_facts() -> dict[str, Any]:
    """Processor, memory, accelerator, versions and source revision of this run."""
    return {
        "cpu": cpu_model(),
        "logical_cpus": os.cpu_count(),
        "memory_gib": memory_gib(),
        "accelerator": accelerator(),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {
            name: distribution_version(name)
            for name in ("sglang", "sgl-kernel-ext", "torch", "numpy")
        },
        "git": git_revision(),
    }


def cpu_model() -> str:
    """The processor's marketing name, or what ``platform`` knows of it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.lower().startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def memory_gib() -> float | None:
    """Physical memory in GiB, or None where the system does not say."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, OSError, ValueError):
        return None


def accelerator() -> str | None:
    """Name of the first CUDA device, or None. Never imports torch by itself."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return str(torch.cuda.get_device_name(0))


def distribution_version(name: str) -> str | None:
    """Installed version of a distribution, or None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_revision(root: Path = REPO_ROOT) -> str | None:
    """Commit of the source tree, ``-dirty`` appended where tracked files differ."""

    def git(*args: str) -> str:
        return subprocess.run(
            ("git", *args),
            cwd=root,
            check=True,
            capture_output=True,
            text=True,
            timeout=20,
        ).stdout.strip()

    try:
        revision = git("rev-parse", "--short=12", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{revision}-dirty" if changed else revision


def command_line(argv: list[str] | None = None) -> str:
    """The command of this run as a reader would type it from the repository root.

    An absolute path is shortened: inside the repository to a relative one,
    elsewhere to its last component.
    """
    argv = sys.argv if argv is None else argv
    return " ".join(["python", *(_quote(_shorten(word)) for word in argv)])


def _shorten(word: str) -> str:
    option, equals, value = word.partition("=")
    if equals and option.startswith("-"):
        return f"{option}={_shorten(value)}"
    if not PurePath(word).is_absolute():
        return word
    path = Path(word).resolve()
    if path.is_relative_to(REPO_ROOT):
        return str(path.relative_to(REPO_ROOT))
    return path.name


def _quote(word: str) -> str:
    import shlex

    return shlex.quote(word)
