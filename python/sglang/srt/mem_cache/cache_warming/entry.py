# SPDX-License-Identifier: Apache-2.0
"""State of one listed prompt, on the rank that decides."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Optional

from sglang.srt.mem_cache.cache_warming.prefix_index import PrefixKey
from sglang.srt.mem_cache.cache_warming.prompt_file import PromptSpec


class EntryState(StrEnum):
    """What an entry waits for, or that it is ready."""

    PENDING = "pending"  # to be tokenized, or its first chunk to be computed
    WARMING = "warming"  # some chunks are computed
    WARM = "warm"  # all of it is cached (kv) or hinted (tree)
    EVICTED = "evicted"  # was warm; to be warmed again at idle
    NO_ADAPTER = "no_adapter"  # its LoRA adapter is not loaded
    OVER_BUDGET = "over_budget"  # entries before it use up the budget
    NO_ROOM = "no_room"  # the pool is full of KV in use or pinned
    FAILED = "failed"  # steps end without the KV being cached; see message


@dataclass
class Entry:
    """One prompt.

    Attributes:
        spec: as listed.
        serial: position among all entries ever listed, the order within a priority.
        tokens: token ids, once rendered.
        lora_id: id of the loaded adapter; changes when it is loaded anew.
        cached: tokens of it that the tree held when last looked.
        times_warmed: how often it became warm.
        settled_epoch: traffic epoch in which it last became warm or was given
            up; within it, it is not warmed again.
        failures: steps in a row that did not extend ``cached``.
        weighed: version of the planner's index against which it was found to be
            over budget.
        pinned / pin_until: a lock is held / is wanted until (the planner's clock).
        hinted: in the hint index of all ranks (tree mode).
        message: reason of the state, for people.
    """

    spec: PromptSpec
    serial: int
    state: EntryState = EntryState.PENDING
    tokens: Optional[array] = None
    lora_id: Optional[str] = None
    cached: int = 0
    times_warmed: int = 0
    settled_epoch: int = -1
    failures: int = 0
    weighed: int = -1
    pinned: bool = False
    pin_until: float = 0.0
    hinted: bool = False
    message: str = ""
    _key: Optional[PrefixKey] = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Its name."""
        return self.spec.name

    @property
    def key(self) -> PrefixKey:
        """The whole prompt in its namespace; ``tokens`` must be there."""
        if self._key is None:
            assert self.tokens is not None, f"{self.name} is not tokenized"
            extra_key = self.spec.extra_key
            if self.lora_id is not None:
                # As a request's constructor joins them.
                extra_key = (extra_key or "") + self.lora_id
            self._key = PrefixKey(self.tokens, extra_key, self.spec.cache_salt)
        return self._key

    def set_lora_id(self, lora_id: Optional[str]) -> None:
        """Another adapter id: nothing cached belongs to it any more."""
        self.lora_id = lora_id
        self._key = None
        self.forget()

    def forget(self) -> None:
        """What was cached or hinted is gone."""
        self.cached = 0
        self.failures = 0
        self.settled_epoch = -1
        self.pinned = False
        self.pin_until = 0.0
        self.weighed = -1
        if self.state is not EntryState.NO_ADAPTER:
            self.state = EntryState.EVICTED if self.times_warmed else EntryState.PENDING
            self.message = ""

    def describe(self, target: int) -> dict[str, Any]:
        """Its state as JSON; ``target`` is the cacheable part of its tokens."""
        return {
            "name": self.name,
            "state": self.state.value,
            "tokens": len(self.tokens) if self.tokens is not None else None,
            "cacheable_tokens": target if self.tokens is not None else None,
            "cached_tokens": self.cached,
            "times_warmed": self.times_warmed,
            "pinned": self.pinned,
            "lora": self.spec.lora,
            "extra_key": self.spec.extra_key,
            "priority": self.spec.priority,
            "message": self.message,
        }
