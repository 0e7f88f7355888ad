# SPDX-License-Identifier: Apache-2.0
"""Each topic works with those before it in `patches/series`, so that a series may end anywhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from fork.patches import Topic, read_series, read_topics
from fork.plan import module_files
from fork.repo import Repo, find_repo


def imports(text: str) -> Iterator[str]:
    """Dotted names of all that `text` imports, at any depth, members included."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def texts(repo: Repo, topic: Topic) -> Iterator[tuple[str, str]]:
    for edit in topic.edits:
        yield edit.where, edit.lines
    for module in topic.modules:
        for name, path in module_files(repo, module):
            if path.suffix == ".py":
                yield name, path.read_text()


def late_imports(repo: Repo, topics: list[Topic]) -> list[str]:
    """Imports of an added module whose topic comes later than the importing one."""
    owner = {
        module.removesuffix(".py").replace("/", "."): place
        for place, topic in enumerate(topics)
        for module in topic.modules
    }
    return [
        f"{topic.name}: {where} imports {name}, which comes with {topics[theirs].name}"
        for place, topic in enumerate(topics)
        for where, text in texts(repo, topic)
        for name in imports(text)
        for module, theirs in owner.items()
        if theirs > place and (name == module or name.startswith(f"{module}."))
    ]


def test_no_topic_imports_from_a_later_one() -> None:
    repo = find_repo(Path(__file__).parent)
    topics = read_topics(repo, read_series(repo))
    assert late_imports(repo, topics) == []
    # In the other order the platform's own topics depend on what would come last.
    assert any("cpu-speculation: " in line for line in late_imports(repo, topics[::-1]))
