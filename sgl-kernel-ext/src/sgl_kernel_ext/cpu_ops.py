# SPDX-License-Identifier: Apache-2.0
"""Operators of the reference CPU platform: attention, draft trees, KV slots, sampling.

They read and write NumPy arrays (or whatever exchanges memory by DLPack) on the host, integers of
32 or 64 bits and float32. `docs/cpu-platform.md` of the fork says which server code uses them;
their PyTorch counterparts, with every argument described, are in the fork's
`srt/platforms/cpu_reference_spec_plain.py` and `srt/layers/attention/cpu_reference_backend.py`.

All check shapes and indices before they write anything.

Raises:
    ValueError: shapes, element types or indices that do not fit; the text names what and where.
"""

from sgl_kernel_ext._cpu_ops import (
    RowAttention,
    beam_to_tree,
    branch_slots,
    draft_slots,
    follow_tree,
    last_accepted,
    links_from_mask,
    pack_accepted,
    pack_front,
    read_spans,
    sample_tree,
    top_k_renorm,
    top_p_renorm,
    write_spans,
)

__all__ = [
    "RowAttention",
    "beam_to_tree",
    "branch_slots",
    "draft_slots",
    "follow_tree",
    "last_accepted",
    "links_from_mask",
    "pack_accepted",
    "pack_front",
    "read_spans",
    "sample_tree",
    "top_k_renorm",
    "top_p_renorm",
    "write_spans",
]
