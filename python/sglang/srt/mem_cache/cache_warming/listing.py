# SPDX-License-Identifier: Apache-2.0
"""The listed prompts: of the file, and added or removed since."""

from __future__ import annotations

import logging
from typing import Any, Callable, Iterable, Optional

from sglang.srt.mem_cache.cache_warming.entry import Entry
from sglang.srt.mem_cache.cache_warming.prompt_file import (
    PromptError,
    PromptSpec,
    load_prompt_file,
)
from sglang.srt.mem_cache.cache_warming.settings import BUDGET_FLAG, WarmingSettings

logger = logging.getLogger(__name__)


class Listing:
    """Entries by name and in the order in which they are made ready.

    Args:
        path: the prompts file, read when an entry is first asked for.
        low_priority_first: order of entries by their priority.
    """

    def __init__(self, path: str, low_priority_first: bool):
        self._path = path
        self._sign = 1 if low_priority_first else -1
        self._entries: dict[str, Entry] = {}
        self._next_serial = 0
        # What is listed so far, without reading the file.
        self.listed: list[Entry] = []
        self.file_read = False

    @property
    def entries(self) -> dict[str, Entry]:
        """All by name; reads the file if that has not happened yet."""
        self.read_file()
        return self._entries

    @property
    def order(self) -> list[Entry]:
        """All in order; reads the file if that has not happened yet."""
        self.read_file()
        return self.listed

    def known(self, name: str) -> Optional[Entry]:
        """The entry, unless it was removed (or not read yet)."""
        return self._entries.get(name)

    def read_file(self) -> None:
        """List the file's entries, once."""
        if self.file_read:
            return
        self.file_read = True
        try:
            self.add(load_prompt_file(self._path))
        except PromptError as error:
            # It was well-formed at the start; the server must not end over it now.
            logger.error("Cache warming: %s; no prompt of the file is warmed", error)

    def add(self, specs: Iterable[PromptSpec], tokens: Iterable[Any] = ()) -> None:
        """Append entries, with their token ids where those are known."""
        rendered = list(tokens)
        for position, spec in enumerate(specs):
            entry = Entry(spec, self._next_serial)
            if position < len(rendered):
                entry.tokens = rendered[position]
            self._next_serial += 1
            self._entries[spec.name] = entry
        self._sort()

    def remove(self, name: str) -> Optional[Entry]:
        """Take an entry out; None if there is none of that name."""
        entry = self.entries.pop(name, None)
        if entry is not None:
            self._sort()
        return entry

    def _sort(self) -> None:
        self.listed = sorted(
            self._entries.values(),
            key=lambda e: (self._sign * e.spec.priority, e.serial),
        )


def checked_tokens(
    spec: PromptSpec, render: Callable[[PromptSpec], Any], settings: WarmingSettings
) -> Any:
    """Token ids of ``spec`` if the server can warm it.

    Raises:
        PromptError: it cannot be tokenized, is too long for the server or for
            the budget, or shorter than what the tree can hold.
    """
    tokens = render(spec)
    count = len(tokens)
    if count > settings.max_prompt_tokens:
        raise PromptError(
            f"prompt {spec.name!r}: has {count} tokens; the server takes prompts "
            f"of at most {settings.max_prompt_tokens} (context length and KV pool)"
        )
    if settings.mode == "tree":
        return tokens
    target = settings.cacheable(count)
    if target == 0:
        raise PromptError(
            f"prompt {spec.name!r}: has {count} tokens, of which the cache, with "
            f"pages of {settings.page_size}, holds none"
        )
    if target > settings.budget_tokens:
        raise PromptError(
            f"prompt {spec.name!r}: needs {target} tokens of the KV pool, more "
            f"than the {settings.budget_tokens} that {BUDGET_FLAG} allows for all "
            "warmed prompts"
        )
    return tokens
