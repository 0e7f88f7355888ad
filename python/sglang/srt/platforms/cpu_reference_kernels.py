# SPDX-License-Identifier: Apache-2.0
"""Whether ``sgl-kernel-ext`` and its CPU operators are installed."""

from __future__ import annotations

import importlib
import logging
from functools import lru_cache
from types import ModuleType
from typing import Optional

logger = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def kernels() -> Optional[ModuleType]:
    """The module ``sgl_kernel_ext.cpu_ops``, or None where it cannot be imported.

    Without it PyTorch does the same more slowly, so its absence is no error.
    """
    try:
        return importlib.import_module("sgl_kernel_ext.cpu_ops")
    except ImportError as error:
        logger.info(
            "The reference CPU platform computes with PyTorch alone (%s); "
            "`pip install ./sgl-kernel-ext` makes it faster.",
            error,
        )
        return None
