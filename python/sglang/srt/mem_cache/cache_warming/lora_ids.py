# SPDX-License-Identifier: Apache-2.0
"""Ids of loaded LoRA adapters by name, as the scheduler learns them."""

from __future__ import annotations

from typing import Any, Iterable, Optional


class LoraIds:
    """A loaded adapter's id is part of its requests' cache namespace and changes
    when the adapter is loaded anew.

    Args:
        refs: adapters loaded at the start (``LoRARef``), or None.
    """

    def __init__(self, refs: Optional[Iterable[Any]]):
        self._ids: dict[str, str] = {ref.lora_name: ref.lora_id for ref in refs or ()}

    def get(self, name: str) -> Optional[str]:
        """The adapter's id; None if it is not loaded."""
        return self._ids.get(name)

    def loaded(self, name: str, lora_id: str) -> Optional[str]:
        """Note that ``name`` was loaded; returns the id it had before, if any."""
        before = self._ids.get(name)
        self._ids[name] = lora_id
        return before

    def unloaded(self, lora_id: str) -> Optional[str]:
        """Note that an adapter was unloaded; returns its name if it was known."""
        for name, known in self._ids.items():
            if known == lora_id:
                del self._ids[name]
                return name
        return None
