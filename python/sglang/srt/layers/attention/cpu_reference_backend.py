# SPDX-License-Identifier: Apache-2.0
"""Attention on the reference CPU platform.

Every batch is a list of requests with some query rows each and some key rows
each, so one plan serves prefill, decode and verification. It depends only on the
batch, is made once per forward pass and is used by every layer.

Where ``sgl-kernel-ext`` is installed and the model is float32, decoding and
verification run on its C++ operator, which reads keys and values where they are.
Else, and for prompts, PyTorch's fused attention runs on gathered ones
(``cpu_reference_blocks``): with many query rows its matrix products win.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence, Union

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.attention.cpu_reference_blocks import (
    Block,
    attend_blocks,
    plan_blocks,
)
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.platforms.cpu_reference_kernels import kernels
from sglang.srt.platforms.cpu_reference_kv_pool import CpuReferenceKVPool

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

# What ``attend`` takes: blocks, or ``sgl_kernel_ext.cpu_ops.RowAttention``.
Plan = Union[list[Block], Any]


def attend(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: Plan,
    *,
    scale: float,
    out: torch.Tensor,
) -> torch.Tensor:
    """Run one layer as planned.

    Args:
        query: ``[rows, q_heads, head_dim]``.
        key_cache: ``[slots, kv_heads, head_dim]``.
        value_cache: ``[slots, kv_heads, v_head_dim]``.
        plan: what ``plan_blocks`` or ``CpuReferenceAttnBackend.plan`` made.
        scale: factor on the scores.
        out: ``[rows, q_heads, v_head_dim]``, overwritten.

    Returns:
        ``out``.
    """
    if not isinstance(plan, list):
        views = (x.numpy() for x in (query.contiguous(), key_cache, value_cache))
        plan.run(*views, scale, out.numpy(), torch.get_num_threads())
        return out
    return attend_blocks(query, key_cache, value_cache, plan, scale=scale, out=out)


class TreeMask(NamedTuple):
    """Draft-tree masks inside upstream's flat ``custom_mask``.

    Attributes:
        cells: the flat mask, bool.
        starts: for each request the cell that says whether its first draft token
            sees itself.
        strides: for each request the cells from one draft token's row to the next's.
        width: draft tokens of each request.
    """

    cells: torch.Tensor
    starts: list[int]
    strides: list[int]
    width: int

    @classmethod
    def locate(
        cls, flat: torch.Tensor, seq_lens: Sequence[int], width: int
    ) -> TreeMask:
        """Tell the two layouts apart.

        Args:
            flat: either one ``[width, width]`` after the other, or one
                ``[width, seq_len + width]`` after the other, whose columns of
                committed tokens are all True.
            seq_lens: committed tokens of each request.
            width: draft tokens of each request.

        Raises:
            ValueError: the mask has neither size.
        """
        square = width * width
        if flat.numel() == len(seq_lens) * square:
            starts = [i * square for i in range(len(seq_lens))]
            return cls(flat, starts, [width] * len(seq_lens), width)
        if flat.numel() != sum(width * length + square for length in seq_lens):
            raise ValueError(
                f"A draft-tree mask of {flat.numel()} cells fits neither layout for "
                f"{len(seq_lens)} requests of {width} draft tokens."
            )
        starts, strides, start = [], [], 0
        for length in seq_lens:
            starts.append(start + length)
            strides.append(length + width)
            start += width * (length + width)
        return cls(flat, starts, strides, width)

    def squares(self) -> list[torch.Tensor]:
        """One ``[width, width]`` view a request."""
        return [
            self.cells.as_strided((self.width, self.width), (stride, 1), start)
            for start, stride in zip(self.starts, self.strides, strict=True)
        ]


class CpuReferenceAttnBackend(AttentionBackend):
    """Multi-head and grouped-query attention over a token-indexed KV pool.

    Serves extend (with or without a cached prefix, chunked, mixed), decode,
    target verification with a draft tree or chain, and draft extension. Page
    size does not matter to it: slots are looked up per token.

    Args:
        model_runner: the runner whose pools are read and written.

    Raises:
        ValueError: the model needs attention this backend does not implement.
    """

    needs_cpu_seq_lens = True
    # A plan takes the width of the drafts from the batch, and nothing is captured.
    verifies_any_width = True
    # Query rows of a request up to which the C++ operator is the faster one
    # (docs/examples/cpu_attention_ratio.py).
    most_compiled_rows = 16

    def __init__(self, model_runner: ModelRunner) -> None:
        super().__init__()
        self.device = model_runner.device
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self.forward_metadata: Plan = []
        float32 = model_runner.dtype == self.token_to_kv_pool.dtype == torch.float32
        self._kernels = kernels() if float32 else None
        if type(self.token_to_kv_pool) is not CpuReferenceKVPool:
            raise ValueError(
                "--attention-backend cpu_reference serves multi-head and "
                "grouped-query attention over a plain KV pool; this model uses "
                f"{type(self.token_to_kv_pool).__name__}. Use "
                "--attention-backend torch_native."
            )

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        mode = forward_batch.forward_mode
        if mode.is_idle():
            self.forward_metadata = []
            return
        seq_lens = _host_list(forward_batch.seq_lens_cpu, forward_batch.seq_lens)
        tree = None
        if mode.is_decode():
            q_lens = [1] * len(seq_lens)
        elif mode.is_target_verify():
            # The batch counts the committed tokens only; its queries are the
            # draft that follows them.
            spec_info = forward_batch.spec_info
            width = spec_info.draft_token_num
            q_lens = [width] * len(seq_lens)
            # With one branch a level the tree is a chain: plainly causal.
            if spec_info.tree_topk != 1:
                mask = spec_info.custom_mask.flatten()
                tree = TreeMask.locate(mask, seq_lens, width)
            seq_lens = [length + width for length in seq_lens]
        else:
            q_lens = _host_list(
                forward_batch.extend_seq_lens_cpu, forward_batch.extend_seq_lens
            )
        self.forward_metadata = self.plan(
            q_lens=q_lens,
            k_lens=seq_lens,
            req_to_token=self.req_to_token_pool.req_to_token,
            req_pool_indices=forward_batch.req_pool_indices,
            tree=tree,
        )

    def plan(
        self,
        *,
        q_lens: Sequence[int],
        k_lens: Sequence[int],
        req_to_token: torch.Tensor,
        req_pool_indices: torch.Tensor,
        tree: Optional[TreeMask] = None,
    ) -> Plan:
        """Plan one causal forward pass, or the verification of draft trees.

        Args: see ``plan_blocks``; ``req_to_token`` must not change before the last
            layer has run.
        """
        compiled = self._kernels is not None
        if not compiled or max(q_lens, default=0) > self.most_compiled_rows:
            return plan_blocks(
                q_lens=q_lens,
                k_lens=k_lens,
                req_to_token=req_to_token,
                req_pool_indices=req_pool_indices,
                tail_masks=None if tree is None else tree.squares(),
            )
        return self._kernels.RowAttention(
            req_to_token.numpy(),
            req_pool_indices.tolist(),
            list(q_lens),
            list(k_lens),
            *(() if tree is None else (tree.cells.numpy(), tree.starts, tree.strides)),
        )

    def forward_extend(
        self,
        q: torch.Tensor,
        k: Optional[torch.Tensor],
        v: Optional[torch.Tensor],
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs,
    ) -> torch.Tensor:
        _reject_unsupported(layer, kwargs)
        pool = self.token_to_kv_pool
        if save_kv_cache and k is not None:
            write = KVWriteLoc(forward_batch.out_cache_loc, None)
            pool.set_kv_buffer(layer, write, k, v)
        query = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = attend(
            query,
            pool.get_key_buffer(layer.layer_id),
            pool.get_value_buffer(layer.layer_id),
            self.forward_metadata,
            scale=layer.scaling,
            out=query.new_empty(*query.shape[:2], layer.v_head_dim),
        )
        return out.flatten(1)

    forward_decode = forward_extend

    def support_triton(self) -> bool:
        return False


def _host_list(on_host, on_device: torch.Tensor) -> list[int]:
    """A length tensor as Python integers, from its host copy where there is one."""
    values = on_device if on_host is None else on_host
    return values.tolist() if isinstance(values, torch.Tensor) else list(values)


def _reject_unsupported(layer: RadixAttention, extra: dict) -> None:
    """Refuse what the plan would silently ignore.

    Raises:
        NotImplementedError: names the feature and what to use instead.
    """
    feature = None
    if layer.sliding_window_size is not None and layer.sliding_window_size > -1:
        feature = "a sliding window"
    elif layer.logit_cap:
        feature = "capped attention scores"
    elif layer.is_cross_attention:
        feature = "cross attention"
    elif layer.attn_type != AttentionType.DECODER:
        feature = f"{layer.attn_type.value} attention"
    elif any(value is not None for value in extra.values()):
        feature = ", ".join(sorted(k for k, x in extra.items() if x is not None))
    if feature is not None:
        raise NotImplementedError(
            f"--attention-backend cpu_reference does not implement {feature}, "
            f"which layer {layer.layer_id} needs. Use --attention-backend "
            "torch_native where it serves this model."
        )
