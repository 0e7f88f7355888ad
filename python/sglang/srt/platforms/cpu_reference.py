# SPDX-License-Identifier: Apache-2.0
"""The reference CPU platform: upstream's server on a machine without accelerator.

It takes the role of an out-of-tree platform (``PlatformEnum.OOT``), the seam
upstream keeps for devices it does not know, so that no ``is_cpu()`` path of the
in-tree CPU engine (which needs a CPU build of ``sgl_kernel``) is entered. It is
a reference: right, and as fast as PyTorch is on a CPU.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from typing import Any, Callable, Optional

import psutil
import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.cpu_reference_args import apply_defaults, check
from sglang.srt.platforms.cpu_reference_detect import reason_to_stay_out
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import (
    KVPoolKind,
    PlatformCapabilities,
    SRTPlatform,
)

logger = logging.getLogger(__name__)

ATTENTION_BACKEND = "cpu_reference"
# Algorithms whose operators the platform has, and the module that holds them. It
# comes with a topic of its own, without which nothing speculates here.
SPECULATION = frozenset({"NGRAM", "STANDALONE", "EAGLE", "EAGLE3"})
_SPECULATION_OPERATORS = "sglang.srt.platforms.cpu_reference_spec_ops"


def activate() -> Optional[CpuReferencePlatform]:
    """Return the platform where it may serve, else None.

    Called once per process from upstream's platform resolution, at the point
    where it found neither a plugin nor an accelerator.
    """
    reason = reason_to_stay_out()
    if reason is not None:
        logger.debug("The reference CPU platform stays out of the way: %s.", reason)
        return None
    return CpuReferencePlatform()


class CpuReferencePlatform(CpuDeviceMixin, SRTPlatform):
    """Host memory as device memory, PyTorch operators as kernels."""

    _enum = PlatformEnum.OOT
    device_name = "cpu-reference"
    device_type = "cpu"
    # Nothing is captured and no Triton kernel can launch: core then takes its
    # torch-native allocator and writers and runs every batch eagerly.
    capabilities = PlatformCapabilities()

    def __init__(self) -> None:
        # The flag's choices are read when the parser is built, which is after
        # the platform is resolved in the processes that parse.
        from sglang.srt.arg_groups import choices

        for names in (
            choices.ATTENTION_BACKEND_CHOICES,
            choices.DRAFT_ATTENTION_BACKEND_CHOICES,
        ):
            if ATTENTION_BACKEND not in names:
                names.append(ATTENTION_BACKEND)

    def apply_server_args_defaults(self, server_args: Any) -> None:
        check(server_args)
        apply_defaults(server_args, attention_backend=ATTENTION_BACKEND)

    def get_default_attention_backend(self) -> str:
        return ATTENTION_BACKEND

    def get_quantization_config(self, quantization: str) -> None:
        """A checkpoint may ask for it without a flag."""
        raise ValueError(
            f"weights quantized by {quantization} cannot be served on the reference "
            "CPU platform (no accelerator was found); use a checkpoint in float32 or "
            "bfloat16."
        )

    def get_kv_pool_cls(self, *, kind: KVPoolKind) -> Optional[type]:
        if kind != "mha":
            return None
        from sglang.srt.platforms.cpu_reference_kv_pool import CpuReferenceKVPool

        return CpuReferenceKVPool

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        return algorithm in SPECULATION and (
            importlib.util.find_spec(_SPECULATION_OPERATORS) is not None
        )

    def get_speculative_cache_locs_fn(self) -> Callable[..., torch.Tensor]:
        return importlib.import_module(_SPECULATION_OPERATORS).extend_cache_locs

    def init_backend(self) -> None:
        import torch._dynamo.config
        from sglang.srt.layers.attention.attention_registry import (
            register_attention_backend,
        )

        # Upstream compiles small functions of sampling and speculation. Here that
        # would run a C++ compiler for minutes, once a shape, for microseconds.
        torch._dynamo.config.disable = True

        @register_attention_backend(ATTENTION_BACKEND)
        def create(runner):
            from sglang.srt.layers.attention.cpu_reference_backend import (
                CpuReferenceAttnBackend,
            )

            return CpuReferenceAttnBackend(runner)

    def find_model_class(self, architecture: str) -> Optional[type]:
        from sglang.srt.platforms.cpu_reference_models import find_model_class

        return find_model_class(architecture)

    def get_device(self, device_id: int = 0) -> str:
        # Upstream takes this for the value of --device, which is a string.
        return "cpu"

    def get_device_total_memory(self, device_id: int = 0) -> int:
        """Bytes this process may use: the cgroup limit where one is set."""
        total = int(psutil.virtual_memory().total)
        limit = _cgroup_limit()
        return min(total, limit) if limit is not None else total

    def get_compile_backend(self, mode: Optional[str] = None) -> str:
        # ``torch.compile`` on this device would need a C++ toolchain at run
        # time for a gain of a few small fused operators.
        return "eager"

    def get_torch_profiler_activity_str(self) -> str:
        return "CPU"

    def get_torch_profiler_activity(self) -> torch.profiler.ProfilerActivity:
        return torch.profiler.ProfilerActivity.CPU


def _cgroup_limit() -> Optional[int]:
    """The memory limit of this process's cgroup in bytes, or None."""
    for path in (
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ):
        if os.path.exists(path):
            with open(path) as file:
                text = file.read().strip()
            # cgroup v1 writes a number near 2**63 for "no limit".
            if text.isdigit() and int(text) < 1 << 60:
                return int(text)
    return None
