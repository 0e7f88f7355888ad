# SPDX-License-Identifier: Apache-2.0
"""LoRA on the reference CPU platform: the same layers, without pinned memory.

Upstream's LoRA layers and its torch-native backend stage small tensors in pinned
memory for copies to a device. Pinning needs the device's driver, and here there is
nothing to copy to.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, TypeVar

import torch

# The edits ask this module, which is the only one of ours that they import.
from sglang.srt.platforms.cpu_reference_detect import active as active
from torch.overrides import TorchFunctionMode

_Class = TypeVar("_Class", bound=type)


class Unpinned(TorchFunctionMode):
    """Within it, this thread's tensors are made and kept in ordinary memory."""

    def __torch_function__(
        self,
        func: Callable,
        types: Any,
        args: tuple = (),
        kwargs: Optional[dict] = None,
    ) -> Any:
        if func is torch.Tensor.pin_memory:
            return args[0]
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


def without_pinning(cls: _Class, method: str) -> _Class:
    """Returns a subclass of ``cls`` whose ``method`` runs in ``Unpinned``."""
    original = getattr(cls, method)

    def unpinned(self: Any, *args: Any, **kwargs: Any) -> Any:
        with Unpinned():
            return original(self, *args, **kwargs)

    unpinned.__doc__ = original.__doc__
    more = {"__module__": cls.__module__, "__doc__": cls.__doc__, method: unpinned}
    return type(cls.__name__, (cls,), more)  # type: ignore[return-value]
