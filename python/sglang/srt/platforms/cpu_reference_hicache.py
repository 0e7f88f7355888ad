# SPDX-License-Identifier: Apache-2.0
"""HiCache's device-to-host copies where the device is the host.

Upstream moves KV rows between pools with CUDA kernels ("kernel" I/O) or with a
batched ``cudaMemcpy`` ("direct" I/O) and pins its host pools for both. On the
reference CPU platform both are an indexed copy between two host tensors, done
when it is submitted: there is no stream it could run on later.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.platforms.cpu_reference_args import HICACHE_LAYOUTS


def serves(host_pool: Any) -> bool:
    """Whether both sides of ``host_pool``'s transfers are host memory."""
    return host_pool._transfer_device.type == "cpu"


def allocate(
    dims: tuple,
    dtype: torch.dtype,
    device: str,
    pin_memory: bool,
    allocator: Any,
    registration_granularity_bytes: int | None = None,
) -> torch.Tensor:
    """Allocate a host pool's buffer without pinning it.

    The signature is that of upstream's per-device allocation functions. The
    pinning arguments are ignored: no copy engine will read the buffer.
    """
    return allocator.allocate(dims, dtype=dtype, device=device)


def load_layer(
    host_pool: Any,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    layer_id: int,
    *,
    is_draft: bool,
) -> None:
    """Copy one layer's rows from the host pool to the device pool.

    Args:
        host_pool: an upstream ``MHATokenToKVPoolHost``.
        host_indices: ``[n]`` token slots of the host pool.
        device_indices: ``[n]`` token slots of the device pool.
        layer_id: layer of the host pool; layers from ``target_layer_num`` on
            belong to draft models.
        is_draft: whether a draft layer is meant. Upstream iterates over more
            layers than a pool has and expects the surplus to be ignored.

    Raises:
        ValueError: the host layout is not supported here.
    """
    if not is_draft and not 0 <= layer_id < host_pool.target_layer_num:
        return
    rows = _host_rows(host_pool, host_indices)
    for device, host in (
        (host_pool.device_k_buffers, host_pool.k_data_refs),
        (host_pool.device_v_buffers, host_pool.v_data_refs),
    ):
        device[layer_id][device_indices] = host[layer_id][rows]


def backup_all_layers(
    host_pool: Any, host_indices: torch.Tensor, device_indices: torch.Tensor
) -> None:
    """Copy the rows of every layer from the device pool to the host pool.

    Raises:
        ValueError: the host layout is not supported here.
    """
    rows = _host_rows(host_pool, host_indices)
    for device, host in (
        (host_pool.device_k_buffers, host_pool.k_data_refs),
        (host_pool.device_v_buffers, host_pool.v_data_refs),
    ):
        for source, target in zip(device, host, strict=True):
            target[rows] = source[device_indices]


def _host_rows(host_pool: Any, indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Token slots as an index into a per-layer view of the host buffer."""
    layout = host_pool.layout
    if layout not in HICACHE_LAYOUTS:
        raise ValueError(
            f"--hicache-mem-layout {layout} is not supported on the reference CPU "
            f"platform; allowed: {', '.join(HICACHE_LAYOUTS)}."
        )
    indices = indices.to(torch.int64)
    if layout == "page_first_direct":
        page = host_pool.page_size
        return indices // page, indices % page
    return (indices,)
