# SPDX-License-Identifier: Apache-2.0
"""pip installs the fork in each way it offers, and removes it again without a trace.

Runs in a copy of the checkout without build/, as a clean clone has none, and in a fresh virtual
environment that sees this one's packages behind its own, so that `import sglang` finds torch.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fork.repo import find_repo

pytestmark = pytest.mark.slow
ROOT = find_repo(Path(__file__).parent).root
VERSION = "0.5.23+opt.1"
PARTS = ("UPSTREAM.toml", "pyproject.toml", "tools/fork", "patches", "python", "LICENSE", "NOTICE")
METADATA = "import importlib.metadata as m; print(m.version('sglang'))"
IMPORT = "import sglang; print(sglang.__version__, sglang.__file__)"


class Environment:
    """A fresh virtual environment and a copy of the checkout."""

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "checkout"
        self.checkout.mkdir()
        ignore = shutil.ignore_patterns("__pycache__")
        for part in PARTS:
            source, target = ROOT / part, self.checkout / part
            if source.is_dir():
                shutil.copytree(source, target, ignore=ignore)
            elif source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
        self.home = folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", str(self.home)], check=True)
        self.python = self.home / "bin" / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.site = self.home / "lib" / version / "site-packages"
        paths = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
        (self.site / "behind.pth").write_text("".join(f"{path}\n" for path in sorted(paths)))

    def run(self, *command: str, status: int = 0) -> str:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHONPATH", "PIP_REQ"))}
        done = subprocess.run(
            [str(self.python), *command], cwd=self.home, env=env,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    def pip(self, *arguments: str, status: int = 0) -> str:
        return self.run("-m", "pip", "--disable-pip-version-check", *arguments, status=status)

    def install(self, *what: str) -> None:
        self.pip("install", "--no-deps", "--no-compile", *what)

    def files(self) -> set[str]:
        return {
            str(path.relative_to(self.home))
            for path in self.home.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("install"))


@pytest.fixture
def clean(environment: Environment) -> Iterator[Environment]:
    """The environment; what a test installed must be gone again once pip has uninstalled it."""
    before = environment.files()
    yield environment
    environment.pip("uninstall", "--yes", "sglang")
    assert environment.files() == before
    assert not list(environment.site.glob("sglang*"))


def check_installed(environment: Environment) -> None:
    """The metadata, and a console script that imports the package, say the fork's version."""
    assert environment.run("-c", METADATA).strip() == VERSION
    script = environment.home / "bin" / "sglang"
    done = subprocess.run([script, "version"], capture_output=True, text=True, check=True)
    assert f"sglang version: {VERSION}" in done.stdout
    assert (environment.home / "bin" / "killall_sglang").is_file()


def check_record(environment: Environment) -> None:
    """RECORD has every installed file with its hash and size."""
    [info] = environment.site.glob("sglang-*.dist-info")
    with (info / "RECORD").open(newline="") as stream:
        rows = {name: (digest, size) for name, digest, size in csv.reader(stream)}
    for name, (digest, size) in rows.items():
        data = (environment.site / name).read_bytes()
        if digest:
            raw = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={raw}", len(data)), name
    installed = {
        path.relative_to(environment.site).as_posix()
        for folder in (environment.site / "sglang", info)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert installed <= rows.keys()


def missing_requirements(environment: Environment) -> set[str]:
    lines = environment.pip("check", status=1).splitlines()
    ours = [line for line in lines if line.startswith(f"sglang {VERSION} ")]
    assert all("which is not installed" in line for line in ours), ours
    return {line.split(" requires ")[1].split(",")[0].lower().replace("_", "-") for line in ours}


def test_a_plain_install(clean: Environment) -> None:
    clean.install(str(clean.checkout))
    check_installed(clean)
    check_record(clean)
    added = {path.relative_to(ROOT / "python") for path in (ROOT / "python").rglob("*.py")}
    assert all((clean.site / path).is_file() for path in added)
    # What pip misses is what requirements/not-on-cpu.toml leaves out, and nothing else.
    tables = tomllib.loads((ROOT / "requirements" / "not-on-cpu.toml").read_text())
    assert missing_requirements(clean) <= {name for table in tables.values() for name in table}


def test_an_editable_install_is_live(clean: Environment) -> None:
    clean.install("--editable", str(clean.checkout))
    check_record(clean)
    tree = next((clean.checkout / "build" / "editable").iterdir())
    package = tree / "sglang" / "__init__.py"
    assert clean.run("-c", IMPORT).split() == [VERSION, str(package)]
    assert clean.run("-c", METADATA).strip() == VERSION
    for path in (clean.checkout / "python").rglob("*.py"):
        assert (tree / path.relative_to(clean.checkout / "python")).samefile(path)


def test_a_built_wheel(clean: Environment) -> None:
    env = {**os.environ, "PYTHONPATH": str(clean.checkout / "tools")}
    command = [sys.executable, "-m", "fork", "build", "--output", str(clean.checkout / "out")]
    subprocess.run(command, cwd=clean.checkout, env=env, check=True)
    [wheel] = (clean.checkout / "out").iterdir()
    clean.install(str(wheel))
    check_installed(clean)
    check_record(clean)
