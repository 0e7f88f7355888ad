# SPDX-License-Identifier: Apache-2.0
"""Find a model class without importing every model.

Upstream imports all of its model modules, some 200, to find the one it serves.
On a CPU that is the longest step of a start after Python's own imports, and
dozens of the modules do not even import without an accelerator.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Optional

from sglang.srt.environ import envs

_PACKAGE = "sglang.srt.models"


def find_model_class(architectures: str | list[str]) -> Optional[type]:
    """Return the class of the first architecture, or None.

    Args:
        architectures: as in the model's configuration.

    Returns:
        The registered class of that name, found by reading the modules' text
        for its definition. None where none or several define it, or where the
        module is one upstream was told to skip: upstream's own search decides.
    """
    if isinstance(architectures, str):
        architectures = [architectures]
    if not architectures or not architectures[0].isidentifier():
        return None
    name = architectures[0]
    defines = re.compile(rf"^class {name}\b", re.MULTILINE)
    folder = Path(importlib.import_module(_PACKAGE).__path__[0])
    modules = [
        path.stem
        for path in sorted(folder.glob("*.py"))
        if defines.search(path.read_text(encoding="utf-8"))
    ]
    if len(modules) != 1 or modules[0] in envs.SGLANG_DISABLED_MODEL_ARCHS.get():
        return None
    entry = getattr(
        importlib.import_module(f"{_PACKAGE}.{modules[0]}"), "EntryClass", ()
    )
    classes = entry if isinstance(entry, list) else [entry]
    return next((cls for cls in classes if getattr(cls, "__name__", "") == name), None)
