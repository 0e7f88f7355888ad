# SPDX-License-Identifier: Apache-2.0
"""Attention on the reference CPU platform, on PyTorch's fused attention.

Every batch is a list of requests with some query rows each and some key rows
each, so one planner serves prefill, decode and verification: it turns the
batch into *blocks* of requests that run as one call of
``scaled_dot_product_attention``. The plan depends only on the batch, is made
once per forward pass and is used by every layer.

Grouped-query attention is folded into the query axis: the ``G`` query heads
that share a key head become ``G`` times as many query rows of that head. PyTorch
would otherwise materialise every key ``G`` times on a CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Sequence

import msgspec
import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.platforms.cpu_reference_kv_pool import CpuReferenceKVPool
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

# A block may hold at most this many times the key rows its requests have.
# Padding rows are gathered and multiplied like real ones, a block less is one
# kernel launch per layer less.
_MAX_PADDING = 1.5


class Block(msgspec.Struct, frozen=True):
    """Requests that run as one attention call.

    Attributes:
        rows: ``[n * q_len]`` int64 rows of the flat query tensor, or a slice
            when they are consecutive.
        slots: ``[n, k_len]`` int64 KV-pool slots, padded with slot 0 (the
            pool's padding slot).
        q_len: query rows a request.
        mask: bool, broadcastable to ``[n, q_len, k_len]``, True where a query
            row sees a key row; None when it sees all of them.
    """

    rows: torch.Tensor | slice
    slots: torch.Tensor
    q_len: int
    mask: Optional[torch.Tensor]


def group_by_length(q_lens: Sequence[int], k_lens: Sequence[int]) -> list[list[int]]:
    """Partition requests into blocks of equal ``q_len`` and similar ``k_len``.

    Args:
        q_lens: query rows of each request.
        k_lens: key rows of each request.

    Returns:
        Lists of request indices. Within a list all ``q_lens`` agree and padding
        every request to the longest ``k_len`` costs at most half again the key
        rows there are. Requests without query rows are left out.
    """
    order = sorted(
        (i for i, q_len in enumerate(q_lens) if q_len > 0),
        key=lambda i: (q_lens[i], -k_lens[i], i),
    )
    groups: list[list[int]] = []
    real = 0
    for i in order:
        if groups and q_lens[groups[-1][0]] == q_lens[i]:
            group = groups[-1]
            padded = k_lens[group[0]] * (len(group) + 1)
            if padded <= _MAX_PADDING * (real + k_lens[i]):
                group.append(i)
                real += k_lens[i]
                continue
        groups.append([i])
        real = k_lens[i]
    return groups


def plan_blocks(
    *,
    q_lens: Sequence[int],
    k_lens: Sequence[int],
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    causal: bool = True,
    tail_masks: Optional[Sequence[torch.Tensor]] = None,
) -> list[Block]:
    """Plan one forward pass.

    Request ``i`` owns ``q_lens[i]`` consecutive rows of the flat query tensor,
    which are the last ``q_lens[i]`` of its ``k_lens[i]`` tokens.

    Args:
        q_lens: query rows of each request.
        k_lens: key rows of each request, the query's own included.
        req_to_token: ``[requests, max_context]`` slot of each token.
        req_pool_indices: ``[n]`` row of each request in ``req_to_token``.
        causal: whether a query row sees only rows up to its own. Encoder
            attention sees all.
        tail_masks: for each request a bool ``[q_len, q_len]`` saying which of
            the last ``q_len`` tokens each query row sees (a draft tree); the
            tokens before them are seen by all. Overrides ``causal``.

    Returns:
        Blocks that cover every query row exactly once.
    """
    starts = [0]
    for q_len in q_lens:
        starts.append(starts[-1] + q_len)
    blocks = []
    for group in group_by_length(q_lens, k_lens):
        q_len, k_len = q_lens[group[0]], k_lens[group[0]]
        lens = torch.tensor([k_lens[i] for i in group])
        members = torch.tensor(group)
        slots = req_to_token[req_pool_indices[members], :k_len].to(torch.int64)
        columns = torch.arange(k_len)
        real = columns < lens[:, None]
        ragged = any(k_lens[i] != k_len for i in group)
        if ragged:
            slots = slots.masked_fill(~real, 0)
        if tail_masks is not None:
            mask = _tree_mask([tail_masks[i] for i in group], lens, k_len)
        elif causal and q_len > 1:
            limit = lens[:, None] - q_len + torch.arange(q_len)
            mask = columns <= limit[:, :, None]
        elif ragged:
            mask = real[:, None, :]
        else:
            mask = None
        if len(group) == group[-1] - group[0] + 1 and group == sorted(group):
            rows = slice(starts[group[0]], starts[group[-1] + 1])
        else:
            first = torch.tensor([starts[i] for i in group])
            rows = (first[:, None] + torch.arange(q_len)).flatten()
        blocks.append(Block(rows=rows, slots=slots, q_len=q_len, mask=mask))
    return blocks


def _tree_mask(
    tails: Sequence[torch.Tensor], lens: torch.Tensor, k_len: int
) -> torch.Tensor:
    """Widen draft-tree masks ``[q_len, q_len]`` to ``[n, q_len, k_len]``."""
    tail = torch.stack(list(tails))
    n, q_len, _ = tail.shape
    # Column c of the widened mask is column c - (len - q_len) of the tail.
    offset = torch.arange(k_len) - (lens[:, None] - q_len)
    inside = tail.gather(
        2, offset.clamp(0, q_len - 1)[:, None, :].expand(n, q_len, k_len)
    )
    return (offset < 0)[:, None, :] | (inside & (offset < q_len)[:, None, :])


def attend(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    blocks: Sequence[Block],
    *,
    scale: float,
    out: torch.Tensor,
) -> torch.Tensor:
    """Run the planned blocks of one layer.

    Args:
        query: ``[rows, q_heads, head_dim]``.
        key_cache: ``[slots, kv_heads, head_dim]``.
        value_cache: ``[slots, kv_heads, v_head_dim]``.
        blocks: the plan.
        scale: factor on the scores.
        out: ``[rows, q_heads, v_head_dim]``, overwritten.

    Returns:
        ``out``.
    """
    kv_heads = key_cache.shape[1]
    q_heads, head_dim = query.shape[1:]
    fold = q_heads // kv_heads
    for block in blocks:
        n, k_len = block.slots.shape
        q_len = block.q_len
        q = query[block.rows].view(n, q_len, kv_heads, fold, head_dim)
        q = q.permute(0, 2, 3, 1, 4).reshape(n, kv_heads, fold * q_len, head_dim)
        flat = block.slots.flatten()
        k = key_cache.index_select(0, flat).view(n, k_len, kv_heads, head_dim)
        v = value_cache.index_select(0, flat).view(n, k_len, kv_heads, -1)
        mask = block.mask
        if mask is not None:
            if mask.shape[1] > 1:
                mask = mask.repeat(1, fold, 1)
            mask = mask[:, None]
        o = scaled_dot_product_attention(
            q,
            k.transpose(1, 2).to(q.dtype),
            v.transpose(1, 2).to(q.dtype),
            attn_mask=mask,
            scale=scale,
        )
        o = o.view(n, kv_heads, fold, q_len, -1).permute(0, 3, 1, 2, 4)
        out[block.rows] = o.reshape(n * q_len, q_heads, -1)
    return out


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

    def __init__(self, model_runner: ModelRunner) -> None:
        super().__init__()
        self.device = model_runner.device
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self.forward_metadata: list[Block] = []
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
        tail_masks = None
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
                tail_masks = tree_masks(spec_info.custom_mask, seq_lens, width)
            seq_lens = [length + width for length in seq_lens]
        else:
            q_lens = _host_list(
                forward_batch.extend_seq_lens_cpu, forward_batch.extend_seq_lens
            )
        self.forward_metadata = plan_blocks(
            q_lens=q_lens,
            k_lens=seq_lens,
            req_to_token=self.req_to_token_pool.req_to_token,
            req_pool_indices=forward_batch.req_pool_indices,
            tail_masks=tail_masks,
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


def tree_masks(
    flat: torch.Tensor, seq_lens: Sequence[int], width: int
) -> list[torch.Tensor]:
    """Split a batch's flat draft-tree mask into one ``[width, width]`` a request.

    Args:
        flat: upstream's ``custom_mask``. Either one ``[width, width]`` after
            the other, or one ``[width, seq_len + width]`` after the other, whose
            columns of committed tokens are all True.
        seq_lens: committed tokens of each request.
        width: draft tokens of each request.

    Raises:
        ValueError: the mask has neither size.
    """
    square = width * width
    if flat.numel() == len(seq_lens) * square:
        return list(flat.view(-1, width, width))
    if flat.numel() != sum(width * length + square for length in seq_lens):
        raise ValueError(
            f"A draft-tree mask of {flat.numel()} cells fits neither layout for "
            f"{len(seq_lens)} requests of {width} draft tokens."
        )
    masks, start = [], 0
    for length in seq_lens:
        size = width * (length + width)
        full = flat[start : start + size].view(width, length + width)
        masks.append(full[:, length:])
        start += size
    return masks


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
