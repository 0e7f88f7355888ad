# SPDX-License-Identifier: Apache-2.0
"""Writes new `sha256` values into patch files, leaving everything else in them as it is."""

from __future__ import annotations

import copy
import os
import re
import tomllib
from collections import defaultdict
from collections.abc import Mapping

from fork.errors import ForkError
from fork.repo import Repo

_KEY = re.compile(r"\s*(file|sha256)\s*=")
_MULTILINE = re.compile(r'"""|\'\'\'')


def rehashed(repo: Repo, updates: Mapping[tuple[str, int], str]) -> dict[str, str]:
    """New text of each patch file: topic -> text, for (topic, edit number) -> hash."""
    per_topic: dict[str, dict[int, str]] = defaultdict(dict)
    for (topic, number), digest in updates.items():
        per_topic[topic][number] = digest
    return {
        topic: rehashed_text(
            (repo.patches / f"{topic}.toml").read_text(encoding="utf-8"),
            digests,
            f"patches/{topic}.toml",
        )
        for topic, digests in per_topic.items()
    }


def rehashed_text(text: str, digests: Mapping[int, str], where: str) -> str:
    """`text` of a patch file with the `sha256` of the edits numbered from 1 set to `digests`.

    An edit without the key gets it below `file`. The result is parsed again and must differ from
    the original in nothing else.

    Raises:
        ForkError: the layout is one that this does not understand; edit the file by hand then.
    """
    lines = text.splitlines(keepends=True)
    for number, keys in reversed(list(enumerate(_key_rows(lines), 1))):
        if number not in digests:
            continue
        line = f'sha256 = "{digests[number]}"\n'
        if "sha256" in keys:
            lines[keys["sha256"]] = line
        elif "file" in keys:
            lines.insert(keys["file"] + 1, line)
    result = "".join(lines)
    expected = copy.deepcopy(tomllib.loads(text))
    for number, digest in digests.items():
        expected["edit"][number - 1]["sha256"] = digest
    if tomllib.loads(result) != expected:
        raise ForkError(
            "cannot set sha256 in this layout",
            where=where,
            remedy="write `file` and `sha256` on lines of their own below each [[edit]]",
        )
    return result


def _key_rows(lines: list[str]) -> list[dict[str, int]]:
    """For each [[edit]], the rows of its `file` and `sha256`; text in long strings is passed over."""
    edits: list[dict[str, int]] = []
    closing = ""
    for row, line in enumerate(lines):
        if closing:
            if closing in line:
                closing = ""
            continue
        if line.strip().startswith("[[edit]]"):
            edits.append({})
        elif (match := _KEY.match(line)) and edits:
            edits[-1][match[1]] = row
        quotes = _MULTILINE.search(line)
        if quotes and quotes[0] not in line[quotes.end() :]:
            closing = quotes[0]
    return edits


def write_patches(repo: Repo, texts: Mapping[str, str]) -> None:
    """Replaces patch files, each in one step."""
    for topic, text in texts.items():
        path = repo.patches / f"{topic}.toml"
        scratch = path.with_suffix(".toml.new")
        scratch.write_text(text, encoding="utf-8")
        os.replace(scratch, path)
