# SPDX-License-Identifier: Apache-2.0
"""The operators of speculative decoding in PyTorch: reference and fallback.

``cpu_reference_spec_ops`` uses the ones of ``sgl-kernel-ext`` in their place where
that package is installed; the tests compare the two. Loops over host lists cost less
than the launches of vectorised operators would: trees have a few dozen nodes.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch

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

    A draft of probability 1 scores as its parent does, so that it may have been chosen
    without it. It hangs nowhere then, and is never accepted.

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
            parents.append(-1 if parent is None else parent)
            paths.append([*paths[parent or 0], node])
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


def branch_slots(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: list[int],
    *,
    topk: int,
    num_steps: int,
    page_size: int,
) -> torch.Tensor:
    """Slots that each draft branch reads: the committed tokens, then its own.

    Args:
        req_to_token: ``[requests, max_context]``.
        req_pool_indices: ``[batch]``.
        seq_lens: committed tokens of each request.
        topk: branches a request.
        num_steps: tokens a branch.
        page_size: with several branches and pages above 1 upstream gives each
            branch pages of its own, the first of which repeats the tokens of
            the last committed page.

    Returns:
        ``[batch * topk, max(seq_lens) + num_steps]`` int32, 0 where a branch is
        shorter.
    """
    longest = max(seq_lens) + num_steps
    table = torch.zeros(len(seq_lens) * topk, longest, dtype=torch.int32)
    for i, (row, length) in enumerate(
        zip(req_pool_indices.tolist(), seq_lens, strict=True)
    ):
        for branch in range(topk):
            start = length + branch * num_steps
            if page_size > 1 and topk > 1:
                tail = length % page_size
                pages = (tail + num_steps + page_size - 1) // page_size
                start = length + branch * pages * page_size
            slots = table[i * topk + branch]
            slots[:length] = req_to_token[row, :length]
            slots[length : length + num_steps] = req_to_token[
                row, start : start + num_steps
            ]
    return table


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


# --------------------------------------------------------------------- sampling


def top_k_renorm(probs: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Keep each row's ``top_k`` largest probabilities and rescale the row to 1.

    Args:
        probs: ``[rows, vocabulary]`` float32. Of equal ones the lower ids are kept.
        top_k: ``[rows]``; values from the vocabulary's size on keep everything.
    """
    vocabulary = probs.shape[1]
    keep = top_k.clamp(1, vocabulary).long()
    ordered = probs.sort(dim=-1, descending=True, stable=True)
    drop = torch.arange(vocabulary) >= keep[:, None]
    return _rescale(probs.shape, ordered.values.masked_fill(drop, 0), ordered.indices)


def top_p_renorm(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keep each row's most likely tokens up to mass ``top_p`` and rescale to 1.

    The token that crosses ``top_p`` is kept, so a row keeps at least one.

    Args:
        probs: ``[rows, vocabulary]`` float32. Of equal ones the lower ids are kept.
        top_p: ``[rows]`` float32.
    """
    ordered = probs.sort(dim=-1, descending=True, stable=True)
    mass = ordered.values.double()
    before = mass.cumsum(-1).roll(1, -1)
    before[:, 0] = 0
    drop = before > top_p[:, None]
    return _rescale(probs.shape, ordered.values.masked_fill(drop, 0), ordered.indices)


def _rescale(
    shape: torch.Size, values: torch.Tensor, indices: torch.Tensor
) -> torch.Tensor:
    values = values / values.double().sum(-1, keepdim=True)
    zeros = torch.zeros(shape)
    return zeros.scatter_(-1, indices, values.float())


def sample_tree(
    links: TreeLinks,
    drafts: torch.Tensor,
    probs: torch.Tensor,
    draws: torch.Tensor,
    *,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accepted_drafts: torch.Tensor,
) -> None:
    """Draw the target's token at each node and follow the draft tree.

    Args:
        probs: ``[batch, n, vocabulary]`` float32.
        draws: ``[batch, n]`` float32 in ``[0, 1)``, one a node, scaled by the row's
            own sum, so that every draw falls inside it.

    The others are those of ``follow_tree``.
    """
    mass = probs.double().cumsum(-1)
    scaled = draws.double()[..., None] * mass[..., -1:]
    tokens = torch.searchsorted(mass, scaled, right=True).squeeze(-1)
    follow_tree(
        links,
        drafts,
        tokens.clamp_(max=probs.shape[-1] - 1),
        predicts=predicts,
        accept_index=accept_index,
        accepted_drafts=accepted_drafts,
    )
