# SPDX-License-Identifier: Apache-2.0
"""The n-gram corpus' draft trees as one more source of the proposer."""

from __future__ import annotations

import numpy as np

NO_NODE = -2


def trees_from_mask(
    tokens: np.ndarray, mask: np.ndarray, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Trees as the proposer takes them, from the corpus' flat form.

    The corpus fills unused places with token 0 below the root; such a place
    cannot be told from a draft of token 0 and is left out.

    Args:
        tokens: int64 [n * width], node 0 of each tree the last real token.
        mask: [n * width * width], nonzero where node j is node i or an ancestor.

    Returns:
        int64 tokens [n, width] and int32 parents [n, width]; -1 at the root, -2
        where there is no node.
    """
    trees = tokens.reshape(-1, width)
    above = np.tril(mask.reshape(-1, width, width) != 0, k=-1)
    order = np.arange(width, dtype=np.int32)
    parents = np.where(above, order, -1).max(axis=2).astype(np.int32)
    parents[(parents == 0) & (trees == 0)] = NO_NODE
    parents[:, 0] = -1
    return trees, parents
