# SPDX-License-Identifier: Apache-2.0
"""Writes new `sha256` values into patch files, leaving everything else in them as it is."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping

from fork.errors import ForkError
from fork.repo import Repo


def rehashed(repo: Repo, updates: Mapping[tuple[str, int], str]) -> dict[str, str]:
    """New text of each patch file: topic -> text, for (topic, edit number) -> hash.

    Raises:
        ForkError: tomlkit, which keeps comments and layout, is not installed.
    """
    try:
        import tomlkit
    except ImportError:
        raise ForkError(
            "tomlkit is needed to rewrite patch files",
            remedy="install the tools: pip install ./tools",
        ) from None
    per_topic: dict[str, dict[int, str]] = defaultdict(dict)
    for (topic, number), digest in updates.items():
        per_topic[topic][number] = digest
    texts = {}
    for topic, digests in per_topic.items():
        document = tomlkit.parse((repo.patches / f"{topic}.toml").read_text(encoding="utf-8"))
        edits = document["edit"]
        for number, digest in digests.items():
            edits[number - 1]["sha256"] = digest  # type: ignore[index]
        texts[topic] = tomlkit.dumps(document)
    return texts


def write_patches(repo: Repo, texts: Mapping[str, str]) -> None:
    """Replaces patch files, each in one step."""
    for topic, text in texts.items():
        path = repo.patches / f"{topic}.toml"
        scratch = path.with_suffix(".toml.new")
        scratch.write_text(text, encoding="utf-8")
        os.replace(scratch, path)
