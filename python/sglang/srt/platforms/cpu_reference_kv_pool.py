# SPDX-License-Identifier: Apache-2.0
"""The KV pool of the reference CPU platform: upstream's, without its kernels."""

from __future__ import annotations

from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool


class CpuReferenceKVPool(MHATokenToKVPool):
    """Upstream's multi-head pool, which moves rows by indexing.

    Upstream prepares a Triton kernel that copies rows of all layers at once
    when a draft tree may have to be compacted; indexing does the same here.
    """

    def _init_kv_copy_and_warmup(self) -> None:
        self._kv_copy_config = None
        self.use_native_move_kv_cache = True
