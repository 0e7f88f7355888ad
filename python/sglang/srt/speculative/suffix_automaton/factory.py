# SPDX-License-Identifier: Apache-2.0
"""Which worker serves ``--speculative-algorithm NGRAM``."""

from __future__ import annotations

from typing import Any, Optional


def worker_class(cfg: Any) -> Optional[type]:
    """The worker for ``--speculative-ngram-use-sam``; None without the flag.

    Args:
        cfg: view of the server arguments.
    """
    if not cfg.speculative_ngram_use_sam:
        return None
    from sglang.srt.speculative.suffix_automaton.worker import SuffixAutomatonWorker

    return SuffixAutomatonWorker
