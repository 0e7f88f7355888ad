# SPDX-License-Identifier: Apache-2.0
"""requirements/cpu.txt against the release's own metadata."""

from __future__ import annotations

import tomllib
from email.parser import BytesParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fork.dist_info import upstream_dist_info
from fork.repo import find_repo

ROOT = find_repo(Path(__file__).parent).root


@pytest.fixture(scope="module")
def upstream(release) -> list[Requirement]:
    """The release's requirements without those of extras."""
    folder = upstream_dist_info(find_repo(ROOT).upstream())
    message = BytesParser().parsebytes((release / folder / "METADATA").read_bytes())
    found = [Requirement(text) for text in message.get_all("Requires-Dist", [])]
    return [item for item in found if "extra" not in str(item.marker or "")]


@pytest.fixture(scope="module")
def listed() -> dict[str, Requirement]:
    lines = (ROOT / "requirements" / "cpu.txt").read_text().splitlines()
    found = [Requirement(text) for line in lines if (text := line.split("#")[0].strip())]
    names = [canonicalize_name(item.name) for item in found]
    assert len(names) == len(set(names))
    return dict(zip(names, found, strict=True))


@pytest.fixture(scope="module")
def excluded() -> dict[str, str]:
    tables = tomllib.loads((ROOT / "requirements" / "not-on-cpu.toml").read_text())
    return {name: reason for table in tables.values() for name, reason in table.items()}


def test_every_requirement_is_listed_or_left_out_with_a_reason(upstream, listed, excluded) -> None:
    names = {canonicalize_name(item.name) for item in upstream}
    assert names == listed.keys() | excluded.keys()
    assert not listed.keys() & excluded.keys()
    assert all(len(reason) > 5 for reason in excluded.values())


def test_what_is_listed_has_upstreams_versions(upstream, listed) -> None:
    for item in upstream:
        ours = listed.get(canonicalize_name(item.name))
        if ours is not None:
            assert ours.specifier == item.specifier, item.name
            assert not ours.extras, "a cu13 extra would bring the kernels back"
            assert ours.marker is None
