# SPDX-License-Identifier: Apache-2.0
"""Requests, batches and a tree that only remembers, for tests of decisions."""

from __future__ import annotations

from types import SimpleNamespace

from sglang.srt.mem_cache.spec_radix_sharing.metrics import SharingMetrics
from sglang.srt.mem_cache.spec_radix_sharing.settings import SharingSettings
from sglang.srt.mem_cache.spec_radix_sharing.sharer import RadixSharer


class Request:
    """The part of a request that sharing reads. 100 prompt tokens are in the tree."""

    skip_radix_cache_insert = False
    beam_group = input_embeds = positional_embed_overrides = session = None
    to_finish = radix_sharing = cache_salt = extra_key = None
    is_retracted = False

    def __init__(self, prompt=100, first=0):
        self.origin_input_ids = list(range(first, first + prompt))
        self.output_ids = [7]
        self.kv = SimpleNamespace(
            cache_protected_len=prompt,
            cache_inserted_len=prompt,
            kv_committed_len=prompt,
            holds_kv=True,
        )
        self.spec_verify_ct = 0
        self.done = False

    @property
    def seqlen(self):
        return len(self.origin_input_ids) + len(self.output_ids)

    @property
    def full_untruncated_fill_ids(self):
        return self.origin_input_ids + self.output_ids

    def owned_kv_len(self):
        return self.kv.kv_committed_len

    def refresh_fill_ids(self):
        pass

    def finished(self):
        return self.done

    def decode(self, tokens, verifications=1, token=7):
        """A round that commits ``tokens``."""
        self.output_ids += [token] * tokens
        self.kv.kv_committed_len += tokens
        self.spec_verify_ct += verifications
        return self


class Mode:
    """Of a batch."""

    def __init__(self, name):
        self.name = name

    def is_decode(self):
        return self.name == "decode"

    def is_mixed(self):
        return self.name == "mixed"


def batch(*requests, mode="decode"):
    return SimpleNamespace(reqs=list(requests), forward_mode=Mode(mode))


class Tree:
    """Takes whole pages; pages of texts it ``had`` are freed as duplicates."""

    def __init__(self, settings):
        self.settings = settings
        self.had = 0
        self.ends = []
        self.free = 1000
        self.tree_core = SimpleNamespace(
            is_eagle=bool(settings.uncached_tail),
            match_full_device_prefix=lambda key: (min(self.had, len(key)), 0, 0),
        )
        self.token_to_kv_pool_allocator = SimpleNamespace(
            free_group=None, available_size=lambda: self.free
        )

    def checkpoint(self, req, *, up_to):
        end = self.settings.cacheable(up_to)
        self.free += max(0, min(self.had, end) - req.kv.cache_protected_len)
        req.kv.cache_protected_len = end
        self.ends.append((req, end))


class World:
    """A sharer on that tree.

    ``queue`` holds the batches without a processed result, ``running`` what decodes.
    """

    def __init__(self, interval=8, threshold=1.0, **more):
        self.settings = SharingSettings(interval, threshold, **more)
        self.tree, self.queue, self.running = Tree(self.settings), [], []
        self.sharer = RadixSharer(
            self.settings, self.tree, lambda: self.queue, lambda: self.running, SharingMetrics()
        )

    def shared(self):
        """Ends of what was inserted since the last call."""
        ends, self.tree.ends = [end for _, end in self.tree.ends], []
        return ends

    def values(self):
        """Counters above 0."""
        return {name: n for name, n in self.sharer.metrics.values().items() if n}
