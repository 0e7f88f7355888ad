# SPDX-License-Identifier: Apache-2.0
"""The policy's inner loops in C++, where ``sgl-kernel-ext`` is installed.

They give the same bits as the Python versions, so ranks with and without the
package still agree.
"""

from __future__ import annotations

from types import ModuleType
from typing import Optional

# sgl_kernel_ext.reuse, or None.
kernels: Optional[ModuleType]
try:
    from sgl_kernel_ext import reuse as kernels
except ImportError as error:
    # Not installed, or too old; one that is broken shall not go unnoticed.
    if error.name != "sgl_kernel_ext":
        raise
    kernels = None
