# SPDX-License-Identifier: Apache-2.0
"""Eviction policies from the literature, for comparison only.

One policy a file. Each runs inside the real Python tree core: ``base`` gives it the
events it needs (access, new leaf, split, eviction) and lets it order the leaves.
They are written from the papers, adapted to a cache that can evict only leaves of
a radix tree and whose objects (tree nodes) split; each file says what that changed.
None is meant for production.
"""
