# SPDX-License-Identifier: Apache-2.0
"""CPU time of the reference platform's attention against upstream's torch_native backend.

Twice where sgl-kernel-ext is installed: as served, and with PyTorch alone. One thread, best of 3.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from sglang.srt.layers.attention.cpu_reference_backend import CpuReferenceAttnBackend, attend
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.platforms.cpu_reference_kernels import kernels

HEADS, KV_HEADS, HEAD_DIM, LAYERS = 9, 3, 64, 30


def milliseconds(function: Callable[[], object]) -> float:
    """CPU time of the fastest of three calls."""
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        function()
        best = min(best, time.process_time() - began)
    return best * 1e3


def compare(name: str, q_lens: list[int], k_lens: list[int]) -> None:
    """Run one forward pass's attention with each and print milliseconds and ratios."""
    n, slots = len(q_lens), sum(k_lens) + 1
    order = torch.randperm(slots - 1) + 1
    table, start = torch.zeros(n, max(k_lens), dtype=torch.int32), 0
    for i, length in enumerate(k_lens):
        table[i, :length] = order[start : start + length].int()
        start += length
    keys, values = torch.randn(2, slots, KV_HEADS, HEAD_DIM)
    query, rows = torch.randn(sum(q_lens), HEADS, HEAD_DIM), torch.arange(n)
    scale = HEAD_DIM**-0.5

    def reference(compiled) -> Callable[[], torch.Tensor]:
        backend = CpuReferenceAttnBackend.__new__(CpuReferenceAttnBackend)
        backend._kernels = compiled

        def run() -> torch.Tensor:
            plan = backend.plan(
                q_lens=q_lens, k_lens=k_lens, req_to_token=table, req_pool_indices=rows
            )
            for _ in range(LAYERS):
                out = attend(query, keys, values, plan, scale=scale, out=torch.empty_like(query))
            return out

        return run

    native = TorchNativeAttnBackend.__new__(TorchNativeAttnBackend)
    seq_lens, extend_lens = torch.tensor(k_lens), torch.tensor(q_lens)
    shared = {"scaling": scale, "enable_gqa": True}

    def upstream() -> torch.Tensor:
        for _ in range(LAYERS):
            out = torch.empty_like(query)
            base = (query, out, keys, values, table, rows, seq_lens)
            if max(q_lens) == 1:
                native._run_sdpa_forward_decode(*base, causal=False, **shared)
            else:
                native._run_sdpa_forward_extend(
                    *base, seq_lens - extend_lens, extend_lens, causal=True, **shared
                )
        return out

    ways = {"cpu_reference": reference(kernels())}
    if kernels() is not None:
        ways["PyTorch alone"] = reference(None)
    base = milliseconds(upstream)
    columns = [f"torch_native {base:.1f} ms"]
    for way, function in ways.items():
        torch.testing.assert_close(function(), upstream(), atol=1e-4, rtol=1e-4)
        taken = milliseconds(function)
        columns.append(f"{way} {taken:.1f} ms {base / taken:.2f}x")
    print(f"{name}: {', '.join(columns)}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    compare("decode, 1 request of 300", [1], [300])
    compare("decode, 8 requests of 300", [1] * 8, [300] * 8)
    compare("decode, 16 requests of 50..1500", [1] * 16, [50 + i * 97 % 1450 for i in range(16)])
    compare("verify 12 tokens, 4 requests of 300", [12] * 4, [312] * 4)
    compare("prefill of 256", [256], [256])
    compare("prefill of 256 behind 1024", [256], [1280])
