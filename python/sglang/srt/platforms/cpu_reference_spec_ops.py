# SPDX-License-Identifier: Apache-2.0
"""The operators of speculative decoding on the reference CPU platform.

Upstream has each of them as a CUDA, Triton or ``sgl_kernel`` kernel. Here they come
from ``sgl-kernel-ext`` where it is installed, else from PyTorch; the results are
the same. All tensors are on the host; arguments marked "out" are overwritten.

A draft tree of ``n`` nodes is numbered so that a parent precedes its children;
node 0 is the last accepted token. Upstream hands it around in two forms: a
boolean matrix whose row ``i`` marks the ancestors of node ``i`` and the node
itself, and three links a node (its row in the batch, its first child, its next
sibling; -1 for none).
"""

from __future__ import annotations

# The edits ask this module, which is the only one of ours that they import.
from sglang.srt.platforms.cpu_reference_detect import active as active
from sglang.srt.platforms.cpu_reference_kernels import kernels
from sglang.srt.platforms.cpu_reference_spec_plain import TreeLinks as TreeLinks

if kernels() is not None:
    from sglang.srt.platforms import cpu_reference_spec_native as _operators
else:
    from sglang.srt.platforms import cpu_reference_spec_plain as _operators

accepted_cache_locs = _operators.accepted_cache_locs
assign_req_to_token = _operators.assign_req_to_token
beam_to_tree = _operators.beam_to_tree
bonus_tokens = _operators.bonus_tokens
branch_slots = _operators.branch_slots
draft_cache_locs = _operators.draft_cache_locs
extend_cache_locs = _operators.extend_cache_locs
follow_tree = _operators.follow_tree
front_cache_locs = _operators.front_cache_locs
links_from_mask = _operators.links_from_mask
sample_tree = _operators.sample_tree
top_k_renorm = _operators.top_k_renorm
top_p_renorm = _operators.top_p_renorm
