# SPDX-License-Identifier: Apache-2.0
"""CPU time of the reference platform's attention against upstream's torch_native backend."""

from __future__ import annotations

import time

import torch
from sglang.srt.layers.attention.cpu_reference_backend import attend, plan_blocks
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

HEADS, KV_HEADS, HEAD_DIM, LAYERS = 9, 3, 64, 30


def compare(name: str, q_lens: list[int], k_lens: list[int]) -> None:
    """Run one forward pass's attention with both and print milliseconds and their ratio."""
    n, slots = len(q_lens), sum(k_lens) + 1
    order = torch.randperm(slots - 1) + 1
    table, start = torch.zeros(n, max(k_lens), dtype=torch.int32), 0
    for i, length in enumerate(k_lens):
        table[i, :length] = order[start : start + length].int()
        start += length
    keys, values = torch.randn(2, slots, KV_HEADS, HEAD_DIM)
    query, rows = torch.randn(sum(q_lens), HEADS, HEAD_DIM), torch.arange(n)
    scale = HEAD_DIM**-0.5

    def ours() -> torch.Tensor:
        blocks = plan_blocks(
            q_lens=q_lens, k_lens=k_lens, req_to_token=table, req_pool_indices=rows
        )
        for _ in range(LAYERS):
            out = attend(query, keys, values, blocks, scale=scale, out=torch.empty_like(query))
        return out

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

    torch.testing.assert_close(ours(), upstream(), atol=1e-4, rtol=1e-4)
    taken = []
    for function in (ours, upstream):
        best = float("inf")
        for _ in range(3):
            began = time.process_time()
            function()
            best = min(best, time.process_time() - began)
        taken.append(best * 1e3)
    ratio = taken[1] / taken[0]
    print(f"{name}: cpu_reference {taken[0]:.1f} ms, torch_native {taken[1]:.1f} ms, {ratio:.2f}x")


if __name__ == "__main__":
    torch.set_num_threads(1)
    compare("decode, 1 request of 300", [1], [300])
    compare("decode, 8 requests of 300", [1] * 8, [300] * 8)
    compare("decode, 16 requests of 50..1500", [1] * 16, [50 + i * 97 % 1450 for i in range(16)])
    compare("prefill of 256", [256], [256])
    compare("prefill of 256 behind 1024", [256], [1280])
