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


def find_model_class(architecture: str) -> Optional[type]:
    """Return the model class of that name, or None.

    Args:
        architecture: a name as in ``architectures`` of a model's configuration.

    Returns:
        The class, found by reading the modules' text for its definition. None
        where no module or several define it, where the module does not register
        it, or where upstream was told to skip the module: upstream's own search
        decides then.
    """
    if not architecture.isidentifier():
        return None
    defines = re.compile(rf"^class {architecture}\b", re.MULTILINE)
    folder = Path(importlib.import_module(_PACKAGE).__path__[0])
    modules = [
        path.stem
        for path in sorted(folder.glob("*.py"))
        if defines.search(path.read_text(encoding="utf-8"))
    ]
    if len(modules) != 1 or modules[0] in envs.SGLANG_DISABLED_MODEL_ARCHS.get():
        return None
    module = importlib.import_module(f"{_PACKAGE}.{modules[0]}")
    entry = getattr(module, "EntryClass", [])
    for cls in entry if isinstance(entry, list) else [entry]:
        if cls.__name__ == architecture:
            return cls
    return None
