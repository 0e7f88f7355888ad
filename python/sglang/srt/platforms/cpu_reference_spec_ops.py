# SPDX-License-Identifier: Apache-2.0
"""The operators of speculative decoding on the reference CPU platform.

Upstream has each of them as a CUDA, Triton or ``sgl_kernel`` kernel. Trees have a
few dozen nodes and batches a few dozen requests, so plain loops over host
lists cost less than the launches of vectorised operators would. All tensors are
on the host; arguments marked "out" are overwritten.

A draft tree of ``n`` nodes is numbered so that a parent precedes its children;
node 0 is the last accepted token. Upstream hands it around in two forms: a
boolean matrix whose row ``i`` marks the ancestors of node ``i`` and the node
itself, and three links a node (its row in the batch, its first child, its next
sibling; -1 for none).
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch

# The edits ask this module, which is the only one of ours that they import.
from sglang.srt.platforms.cpu_reference_detect import active as active

# ------------------------------------------------------------------------- tree


class TreeLinks(NamedTuple):
    """The link form of a batch of draft trees, each ``[batch, n]`` int64.

    Attributes:
        row: the node's row in the batch, ``request * n + node``.
        child: first child in the request, -1 for none.
        sibling: next sibling in the request, -1 for none.
    """

    row: torch.Tensor
    child: torch.Tensor
    sibling: torch.Tensor

    def write(self, request: int, parents: list[int]) -> None:
        """Set the links of one request from the parent of each of its nodes."""
        n = len(parents)
        child, sibling = link_children(parents)
        self.row[request] = torch.arange(request * n, request * n + n)
        self.child[request] = torch.tensor(child)
        self.sibling[request] = torch.tensor(sibling)


def link_children(parents: list[int]) -> tuple[list[int], list[int]]:
    """First child and next sibling of every node, children in ascending order.

    Args:
        parents: parent of each node, -1 for a root. A second root (padding that
            hangs nowhere) is linked to nothing.
    """
    first_child, next_sibling = [-1] * len(parents), [-1] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        parent = parents[node]
        if parent >= 0:
            next_sibling[node] = first_child[parent]
            first_child[parent] = node
    return first_child, next_sibling


def links_from_mask(
    mask: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    positions: torch.Tensor,
    out: TreeLinks,
) -> None:
    """Derive positions and links from the matrix form.

    Args:
        mask: ``[batch, n, n]`` bool.
        seq_lens: ``[batch]`` committed tokens.
        positions: out, ``[batch * n]``: committed tokens plus depth.
        out: the links, overwritten.
    """
    order = torch.arange(mask.shape[1])
    ancestors = mask & (order < order[:, None])
    depth = ancestors.sum(-1)
    positions.copy_((depth + seq_lens.to(depth.dtype)[:, None]).flatten())
    # The nearest ancestor is the parent: ancestors are numbered along the path.
    nearest = torch.where(ancestors, order, -1).amax(-1)
    for request, parents in enumerate(nearest.tolist()):
        out.write(request, parents)


def beam_to_tree(
    chosen: torch.Tensor,
    expanded: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    topk: int,
    positions: torch.Tensor,
    mask: torch.Tensor,
    full_mask: bool,
    out: TreeLinks,
) -> None:
    """Turn an EAGLE beam into a tree in both forms.

    Args:
        chosen: ``[batch, n - 1]`` beam indices of the chosen tokens, ascending.
            The tokens ``topk * j .. topk * j + topk - 1`` of the beam descend
            from the ``j``-th expanded one, the first ``topk`` from the root.
        expanded: ``[batch, m]`` beam index of each expanded token; entry 0
            stands for the root.
        seq_lens: ``[batch]`` committed tokens.
        topk: beam width.
        positions: out, ``[batch * n]``.
        mask: out. One ``[n, n]`` a request, or with ``full_mask`` one
            ``[n, seq_len + n]``, of which only the last ``n`` columns are
            written: the caller has set the others.
        full_mask: layout of ``mask``.
        out: the links, overwritten.

    Raises:
        ValueError: a chosen token descends from one that was not chosen.
    """
    n = chosen.shape[1] + 1
    start = 0
    for request, length in enumerate(seq_lens.tolist()):
        beam = chosen[request].tolist()
        sources = expanded[request].tolist()
        node_of = {index: node for node, index in enumerate(beam, start=1)}
        parents, paths = [-1], [[0]]
        for node, index in enumerate(beam, start=1):
            source = index // topk
            parent = 0 if source == 0 else node_of.get(sources[source])
            if parent is None:
                raise ValueError(
                    f"Draft tree of request {request}: node {node} (beam index "
                    f"{index}) descends from beam index {sources[source]}, which "
                    f"was not chosen; chosen: {beam}."
                )
            parents.append(parent)
            paths.append([*paths[parent], node])
        columns = length + n if full_mask else n
        cells = mask[start : start + n * columns].view(n, columns)[:, -n:]
        start += n * columns
        cells.fill_(False)
        for node, path in enumerate(paths):
            cells[node, path] = True
            positions[request * n + node] = length + len(path) - 1
        out.write(request, parents)


def follow_tree(
    links: TreeLinks,
    drafts: torch.Tensor,
    wanted: torch.Tensor,
    *,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accepted_drafts: torch.Tensor,
) -> None:
    """Follow the target's choices down each tree as far as it was drafted.

    Args:
        links: the trees.
        drafts: ``[batch, n]`` drafted tokens.
        wanted: ``[batch, n]`` the target's token after each node.
        predicts: out, ``[batch * n]``: the target's token at each accepted node.
        accept_index: out, ``[batch, depth]``: rows of the accepted nodes, the
            root first; untouched behind them.
        accepted_drafts: out, ``[batch]``: accepted nodes without the root.
    """
    depth = accept_index.shape[1]
    rows, children, siblings = (x.tolist() for x in links)
    tokens, targets = drafts.tolist(), wanted.tolist()
    for request, target in enumerate(targets):
        node, path = 0, [rows[request][0]]
        while True:
            predicts[rows[request][node]] = target[node]
            if len(path) == depth:
                break
            child = children[request][node]
            while child != -1 and tokens[request][child] != target[node]:
                child = siblings[request][child]
            if child == -1:
                break
            node = child
            path.append(rows[request][node])
        accept_index[request, : len(path)] = torch.tensor(
            path, dtype=accept_index.dtype
        )
        accepted_drafts[request] = len(path) - 1


# ------------------------------------------------------------------------ slots


def extend_cache_locs(
    *,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    **_: object,
) -> torch.Tensor:
    """Slots of each request's tokens ``start .. end``, one after the other, int64."""
    rows = zip(
        req_pool_indices.tolist(),
        start_offset.tolist(),
        end_offset.tolist(),
        strict=True,
    )
    parts = [req_to_token[row, start:end] for row, start, end in rows]
    return torch.cat(parts).to(torch.int64)


def assign_req_to_token(
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Write consecutive ``slots`` into ``req_to_token[row, start:end]`` (out)."""
    taken = 0
    spans = zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
    for row, start, end in spans:
        part = slots[taken : taken + end - start]
        req_to_token[row, start:end] = part.to(req_to_token.dtype)
        taken += end - start


def draft_cache_locs(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    width: int,
    positions: Optional[torch.Tensor] = None,
) -> None:
    """Slots of the ``width`` tokens behind each request's committed ones.

    Args:
        out_cache_loc: out, ``[batch * width]``.
        positions: out where given, ``[batch * k]``: committed tokens, each
            repeated.
    """
    columns = seq_lens[:, None] + torch.arange(width)
    slots = req_to_token[req_pool_indices.long()[:, None], columns.long()]
    out_cache_loc[: slots.numel()] = slots.flatten().to(out_cache_loc.dtype)
    if positions is not None:
        each = positions.numel() // seq_lens.numel()
        positions.copy_(seq_lens.repeat_interleave(each))


def front_cache_locs(
    num_front: torch.Tensor, out_cache_loc: torch.Tensor, front: torch.Tensor
) -> None:
    """Pack the first ``num_front[i]`` of each request's slots into ``front`` (out)."""
    window = out_cache_loc.view(num_front.numel(), -1)
    packed = torch.cat([row[:k] for row, k in zip(window, num_front.tolist())])
    front[: packed.numel()] = packed.to(front.dtype)


def accepted_cache_locs(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accepted: torch.Tensor
) -> None:
    """Pack the slots of the accepted nodes (index above -1) into ``accepted`` (out)."""
    index = accept_index.flatten()
    slots = out_cache_loc[index[index > -1].long()]
    accepted[: slots.numel()] = slots.to(accepted.dtype)


def bonus_tokens(
    accept_tokens: torch.Tensor,
    accept_lens: torch.Tensor,
    bonus: torch.Tensor,
    stride: int,
) -> None:
    """The last accepted token of each request.

    Args:
        accept_tokens: ``[batch * stride]``, or ``[batch, stride]``.
        accept_lens: ``[batch]``, the bonus token included.
        bonus: out, ``[batch]``.
    """
    last = torch.arange(accept_lens.numel()) * stride + accept_lens.long() - 1
    bonus.copy_(accept_tokens.flatten()[last])
