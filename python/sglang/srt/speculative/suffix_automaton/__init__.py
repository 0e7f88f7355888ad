# SPDX-License-Identifier: Apache-2.0
"""Drafts for ``--speculative-algorithm NGRAM`` from suffix automata.

``settings`` checks the flags, ``texts`` keeps the proposer's texts in step with
the requests of a batch, ``hints`` turns the n-gram corpus' trees into one more
source, ``worker`` is upstream's NGRAM worker with other drafts (``factory`` chooses it), ``metrics`` says
how much is held and dropped. The proposer itself is ``sgl_kernel_ext``'s.
"""
