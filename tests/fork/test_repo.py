# SPDX-License-Identifier: Apache-2.0
"""Finding the checkout, and reading what UPSTREAM.toml pins."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fork.errors import ForkError
from fork.repo import find_repo, parse_upstream, render_upstream

GOOD = (
    'name = "sglang"\nversion = "1.0"\nlocal = "opt.1"\n'
    f'[[wheel]]\nfile = "sglang-1.0-cp311-cp311-linux_x86_64.whl"\nsha256 = "{"a" * 64}"\n'
)


def test_the_checkout_is_found_from_below(checkout) -> None:
    below = checkout.root / "python" / "deep"
    below.mkdir()
    assert find_repo(below).root == checkout.root


def test_outside_a_checkout_the_error_says_what_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ForkError, match=r"no UPSTREAM\.toml(.|\n)*--repo DIR"):
        find_repo(tmp_path)


def test_a_written_pin_reads_back() -> None:
    upstream = parse_upstream(tomllib.loads(GOOD), "UPSTREAM.toml")
    assert upstream.fork_version == "1.0+opt.1"
    assert upstream.wheels[0].tags == "cp311-cp311-linux_x86_64"
    assert parse_upstream(tomllib.loads(render_upstream(upstream)), "x") == upstream


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('version = "1.0"', 'versoin = "1.0"', "unknown key 'versoin'"),
        ('version = "1.0"', "version = 1.0", "version must be a non-empty string"),
        ('"opt.1"', '"Opt 1"', "local must be a PEP 440 local label"),
        ("sglang-1.0-cp311", "sglang-1.1-cp311", "is no wheel file of sglang 1.0"),
        ("a" * 64, "a" * 63, "must be 64 hex digits"),
        ("[[wheel]]", "[[wheels]]", "unknown key 'wheels'"),
        ("sha256 =", "sha25 =", "unknown key 'sha25'"),
    ],
)
def test_mistakes_in_the_pin_are_named(old: str, new: str, problem: str) -> None:
    with pytest.raises(ForkError, match=problem):
        parse_upstream(tomllib.loads(GOOD.replace(old, new)), "UPSTREAM.toml")


def test_this_repositorys_pin_is_as_bump_writes_it() -> None:
    repo = find_repo(Path(__file__).parent)
    assert repo.upstream_file.read_text() == render_upstream(repo.upstream())


def test_this_repository_pins_three_interpreters_on_two_machines() -> None:
    upstream = find_repo(Path(__file__).parent).upstream()
    tags = {tuple(pin.tags.split("-")[::2]) for pin in upstream.wheels}
    machines = {(python, platform.split("_", 3)[3]) for python, platform in tags}
    assert machines == {
        (python, machine)
        for python in ("cp311", "cp312", "cp313")
        for machine in ("x86_64", "aarch64")
    }
    assert len({pin.sha256 for pin in upstream.wheels}) == len(upstream.wheels)
