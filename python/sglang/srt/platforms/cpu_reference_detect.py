# SPDX-License-Identifier: Apache-2.0
"""Decide whether the reference CPU platform may serve on this machine.

Upstream's platform resolution asks here only after everything else has
declined: ``SGLANG_PLATFORM``, platform plugins, ``SGLANG_USE_CPU_ENGINE`` and
every accelerator it knows. What is left is checked again with a wider net,
because a machine whose GPU is merely broken or hidden from this process must
fail the way upstream fails instead of quietly serving on its CPU.
"""

from __future__ import annotations

import glob
import os
from importlib.util import find_spec
from typing import Optional

import torch

# Device nodes that exist when the kernel driver of an accelerator is loaded,
# whether or not this process may use the device.
_DEVICE_NODES: tuple[tuple[str, str], ...] = (
    ("/dev/nvidia[0-9]*", "NVIDIA GPU"),
    ("/dev/nvidiactl", "NVIDIA driver"),
    ("/dev/kfd", "AMD GPU"),
    ("/dev/davinci[0-9]*", "Ascend NPU"),
    ("/dev/accel/accel[0-9]*", "accelerator"),
    ("/dev/hl[0-9]*", "Habana accelerator"),
)

# Environment variables by which a user selects another platform or engine.
_SELECTORS: tuple[str, ...] = ("SGLANG_PLATFORM", "SGLANG_USE_MLX")


def active() -> bool:
    """Whether this process serves on the reference CPU platform."""
    from sglang.srt.platforms import current_platform

    return current_platform.device_name == "cpu-reference"


def reason_to_stay_out(root: str = "/") -> Optional[str]:
    """Return why the reference CPU platform must not activate, or None.

    Args:
        root: directory that stands for ``/`` when looking for device nodes.

    Returns:
        A clause that names what was found (``"NVIDIA GPU at /dev/nvidia0"``),
        or None when this is a machine without an accelerator on which nothing
        else was selected.
    """
    for name in _SELECTORS:
        value = os.environ.get(name, "")
        if value not in ("", "0"):
            return f"{name}={value} selects another platform"
    if os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1":
        return "SGLANG_USE_CPU_ENGINE=1 selects the CPU engine"
    for pattern, what in _DEVICE_NODES:
        found = sorted(glob.glob(os.path.join(root, pattern.lstrip("/"))))
        if found:
            return f"{what} at {found[0]}"
    # Covers back ends that register with torch as its accelerator (CUDA, XPU,
    # MPS, private-use back ends) without initialising a runtime.
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        return f"torch reports the accelerator {accelerator.type}"
    if find_spec("habana_frameworks") is not None:
        return "the Habana framework is installed"
    return None
