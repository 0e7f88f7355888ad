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
except ImportError:
    kernels = None
