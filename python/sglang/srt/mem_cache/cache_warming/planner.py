# SPDX-License-Identifier: Apache-2.0
"""Decides what to warm next. Runs on the one rank that receives the input.

The tree itself is asked what is cached, so eviction, flushes and real requests
that computed the same prefix need no bookkeeping here to be noticed.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any, Callable, Iterable, Optional

from sglang.srt.mem_cache.cache_warming.entry import Entry, EntryState
from sglang.srt.mem_cache.cache_warming.listing import Listing, checked_tokens
from sglang.srt.mem_cache.cache_warming.metrics import WarmingMetrics
from sglang.srt.mem_cache.cache_warming.prefix_index import PrefixIndex, PrefixKey
from sglang.srt.mem_cache.cache_warming.prompt_file import (
    PromptError,
    PromptSpec,
    load_prompt_file,
)
from sglang.srt.mem_cache.cache_warming.settings import WarmingSettings
from sglang.srt.mem_cache.cache_warming.step_size import StepSize
from sglang.srt.mem_cache.cache_warming.steps import (
    DropStep,
    HintStep,
    PinStep,
    PrefillStep,
    UnpinStep,
    WarmingStep,
)

logger = logging.getLogger(__name__)

# Steps in a row without progress after which an entry is left alone until there
# was real traffic.
MAX_FAILURES = 3

Render = Callable[[PromptSpec], Any]


class Planner:
    """The entries and the order in which they are made ready.

    ``next_step`` does one unit of work a call: it reads the file, tokenizes one
    entry, looks one entry up in the tree, or returns one step. What a step
    changes is recorded when the step was taken (``step_taken``,
    ``prefill_done``), since the caller may drop it in favour of a real request.

    Args:
        settings: see there.
        cached_tokens: tokens of a key that the KV tree holds, without touching
            recency.
        render: token ids of an entry; raises ``PromptError``.
        lora_id_of: id of a loaded adapter by name, None if it is not loaded.
        metrics: where work is counted.
        clock: seconds, for pins.
    """

    def __init__(
        self,
        settings: WarmingSettings,
        *,
        cached_tokens: Callable[[PrefixKey], int],
        render: Render,
        lora_id_of: Callable[[str], Optional[str]],
        metrics: WarmingMetrics,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.settings = settings
        self.metrics = metrics
        self.step_size = StepSize(
            settings.chunk_tokens, settings.page_size, settings.step_s
        )
        # Warmed prefixes as last seen in the tree.
        self.index = PrefixIndex(settings.page_size)
        self._cached_tokens = cached_tokens
        self._render = render
        self._lora_id_of = lora_id_of
        self._clock = clock
        self._listing = Listing(settings.path, settings.low_priority_first)
        self._outbox: deque[WarmingStep] = deque()
        self._to_verify: list[Entry] = []
        self._verify_due = False
        # Counts stretches of real traffic; see Entry.settled_epoch.
        self._epoch = 0
        self._quiet = False

    # ---- entries --------------------------------------------------------

    def check(self, spec: PromptSpec) -> Any:
        """See ``listing.checked_tokens``."""
        return checked_tokens(spec, self._render, self.settings)

    def check_file(self) -> int:
        """Check every entry of the file; returns how many there are.

        Raises:
            PromptError: see ``check`` and ``load_prompt_file``.
        """
        specs = load_prompt_file(self.settings.path)
        for spec in specs:
            self.check(spec)
        return len(specs)

    @property
    def names(self) -> set[str]:
        """Names in use; reads the file if that has not happened yet."""
        return set(self._listing.entries)

    def add(self, specs: Iterable[PromptSpec], tokens: Iterable[Any] = ()) -> None:
        """Append entries, with their token ids where those are known."""
        self._listing.add(specs, tokens)
        self._quiet = False

    def remove(self, name: str) -> bool:
        """Forget an entry; what is cached of it stays as ordinary cache."""
        entry = self._listing.remove(name)
        if entry is None:
            return False
        if entry.pinned:
            self._outbox.append(UnpinStep(name))
        if entry.hinted:
            self._outbox.append(HintStep(name, None))
        self._quiet = False
        self._reindex()
        return True

    def describe(self) -> dict[str, Any]:
        """All entries and totals as JSON."""
        order = self._listing.order
        return {
            "mode": self.settings.mode,
            "chunk_tokens": self.step_size.tokens,
            "budget_tokens": self.settings.budget_tokens,
            "warmed_tokens": self.index.size,
            "prompts": [
                e.describe(self._target(e) if e.tokens is not None else 0)
                for e in order
            ],
        }

    def _target(self, entry: Entry) -> int:
        return self.settings.cacheable(len(entry.tokens))

    def _target_key(self, entry: Entry) -> PrefixKey:
        """What the tree must be asked for to be given all that it can hold of it."""
        return entry.key.upto(self._target(entry) + self.settings.uncached_tail)

    # ---- what happened elsewhere ----------------------------------------

    def on_traffic(self) -> None:
        """Real requests arrived: afterwards, entries may have been evicted."""
        if self.settings.mode == "tree":
            return
        self._epoch += 1
        self._verify_due = True
        self._quiet = False

    def on_tree_reset(self) -> None:
        """The tree was emptied: nothing is cached, no lock exists."""
        if self.settings.mode == "tree":
            return
        self._forget_all()

    def on_weights_changed(self) -> None:
        """The weights changed and the tree was kept: what is cached is stale."""
        if self.settings.mode == "tree":
            return
        stale = [e for e in self._listing.listed if e.tokens is not None and e.cached]
        unpin = [UnpinStep(e.name) for e in stale if e.pinned]
        drop = [DropStep(e.name, self._target_key(e)) for e in stale]
        self._forget_all()
        self._outbox.extend([*unpin, *drop])

    def _forget_all(self) -> None:
        for entry in self._listing.listed:
            entry.forget()
        self._outbox = deque(s for s in self._outbox if isinstance(s, HintStep))
        self._to_verify = []
        self.index.rebuild(())
        self._epoch += 1
        self._quiet = False

    def on_lora_changed(self, lora_name: str) -> None:
        """An adapter was loaded or unloaded; its locks are released already."""
        for entry in self._listing.listed:
            if entry.spec.lora == lora_name:
                entry.pinned = False
                self._adopt_adapter(entry)
        self._reindex()
        self._quiet = False

    def on_pins_released(self, names: Iterable[str]) -> None:
        """Locks were given up for real requests; taken again at idle."""
        for name in names:
            if (entry := self._listing.known(name)) is not None:
                entry.pinned = False
        self._quiet = False

    # ---- the next step --------------------------------------------------

    def has_work(self) -> bool:
        """Whether ``next_step`` has something to do."""
        return not self._quiet or self._expired_pin() is not None

    def next_step(self) -> Optional[WarmingStep]:
        """Do one unit of work; a step if that is what it leads to."""
        if not self._listing.file_read:
            self._listing.read_file()
            return None
        if self._outbox:
            return self._outbox[0]
        if (entry := self._expired_pin()) is not None:
            return UnpinStep(entry.name)
        if self._verify_due:
            self._verify_due = False
            self._to_verify = [e for e in self._listing.listed if e.cached]
        if self._to_verify:
            self._verify(self._to_verify.pop())
            return None
        for entry in self._listing.listed:
            worked, step = self._advance(entry)
            if worked:
                return step
        self._quiet = True
        return None

    def _expired_pin(self) -> Optional[Entry]:
        now = self._clock()
        for entry in self._listing.listed:
            if entry.pinned and entry.pin_until <= now:
                return entry
        return None

    def _verify(self, entry: Entry) -> None:
        before = entry.cached
        self._look_up(entry)
        if entry.cached < before and entry.state is EntryState.WARM:
            entry.state = EntryState.EVICTED

    def _look_up(self, entry: Entry) -> None:
        """Bring ``entry.cached`` and the index in line with the tree."""
        found = min(self._cached_tokens(entry.key), self._target(entry))
        if found < entry.cached:
            entry.cached = found
            self._reindex()
        elif found > entry.cached and self._fits(entry, found):
            entry.cached = found
            self.index.add(entry.key.upto(found))
            self.metrics.set_resident(self.index.size)

    def _fits(self, entry: Entry, length: int) -> bool:
        """Whether the budget has room for so much of the entry.

        Real traffic may have computed it; counted, it would be held and watched too.
        """
        grown = length - self.index.match(entry.key.upto(length))
        return self.index.size + grown <= self.settings.budget_tokens

    def _make_room(self, entry: Entry, target: int) -> bool:
        """Take entries behind ``entry`` out of the budget, the last one first.

        They stay as ordinary cache, and come back if there is room left. False,
        and nothing is taken out, unless that makes ``entry`` fit.
        """
        listed = self._listing.listed
        position = next(i for i, e in enumerate(listed) if e is entry)
        behind = [e for e in listed[position + 1 :] if e.cached]
        if not behind:
            return False
        least = PrefixIndex(self.settings.page_size)
        least.rebuild(e.key.upto(e.cached) for e in listed[:position] if e.cached)
        least.add(entry.key.upto(target))
        if least.size > self.settings.budget_tokens:
            return False
        while behind and not self._fits(entry, target):
            last = behind.pop()
            last.cached = 0
            # A lock is released as that of an expired pin, before the next step.
            last.pin_until = 0.0
            if last.state in (EntryState.WARM, EntryState.WARMING):
                last.state = EntryState.OVER_BUDGET
                last.message = f"gave way to {entry.name!r}, which comes before it"
                last.settled_epoch = -1
            self._reindex()
        return True

    def _reindex(self) -> None:
        self.index.rebuild(
            e.key.upto(e.cached) for e in self._listing.listed if e.cached
        )
        self.metrics.set_resident(self.index.size)

    def _adopt_adapter(self, entry: Entry) -> bool:
        """Follow the adapter's id; False while it is not loaded."""
        if entry.spec.lora is None:
            return True
        lora_id = self._lora_id_of(entry.spec.lora)
        if lora_id != entry.lora_id:
            if entry.hinted:
                self._outbox.append(HintStep(entry.name, None))
                entry.hinted = False
            entry.state = EntryState.PENDING
            entry.set_lora_id(lora_id)
        if lora_id is None:
            entry.state = EntryState.NO_ADAPTER
            entry.message = f"adapter {entry.spec.lora!r} is not loaded"
            return False
        return True

    def _advance(self, entry: Entry) -> tuple[bool, Optional[WarmingStep]]:
        """(whether something was done, the step)."""
        if entry.state is EntryState.FAILED and entry.tokens is None:
            return False, None
        if not self._adopt_adapter(entry):
            return False, None
        if entry.tokens is None:
            self._tokenize(entry)
            return True, None
        if self.settings.mode == "tree":
            if entry.hinted:
                return False, None
            return True, HintStep(entry.name, entry.key)
        if entry.state is EntryState.WARM:
            if not entry.pinned and entry.pin_until > self._clock():
                return True, PinStep(entry.name, self._target_key(entry), entry.lora_id)
            return False, None
        if entry.settled_epoch == self._epoch:
            return False, None
        return self._advance_kv(entry)

    def _advance_kv(self, entry: Entry) -> tuple[bool, Optional[WarmingStep]]:
        if entry.weighed == self.index.version:
            return False, None
        target = self._target(entry)
        self._look_up(entry)
        cached = entry.cached
        if cached >= target:
            self._became_warm(entry, computed=False)
            return True, None
        if not self._fits(entry, target) and not self._make_room(entry, target):
            held = self.index.match(entry.key.upto(target))
            entry.state = EntryState.OVER_BUDGET
            entry.message = (
                f"needs {target - held} more tokens; {self.index.size} of the budget "
                f"of {self.settings.budget_tokens} are taken"
            )
            # One look-up a call, and none again until the set changed.
            entry.weighed = self.index.version
            return True, None
        entry.state = EntryState.WARMING
        entry.message = ""
        end = min(cached + self.step_size.tokens, target)
        end = min(end + self.settings.uncached_tail, len(entry.tokens))
        return True, PrefillStep(
            name=entry.name,
            serial=entry.serial,
            tokens=entry.tokens[:end],
            lora_id=entry.lora_id,
            extra_key=entry.spec.extra_key,
            cache_salt=entry.spec.cache_salt,
            priority=entry.spec.priority,
        )

    def _tokenize(self, entry: Entry) -> None:
        try:
            entry.tokens = self.check(entry.spec)
        except PromptError as error:
            entry.state = EntryState.FAILED
            entry.message = str(error)
            logger.error("Cache warming: %s", error)

    # ---- what became of steps -------------------------------------------

    def step_taken(self, step: WarmingStep, done: bool = True) -> None:
        """All ranks took ``step``; ``done`` is False for a pin that found no KV."""
        if self._outbox and self._outbox[0] is step:
            self._outbox.popleft()
        entry = self._listing.known(step.name)
        if entry is None:
            return
        if isinstance(step, PinStep):
            entry.pinned = done
            if not done:
                entry.pin_until = 0.0
                self._verify(entry)
        elif isinstance(step, UnpinStep):
            entry.pinned = False
        elif isinstance(step, HintStep):
            entry.hinted = step.key is not None
            if entry.hinted:
                entry.state = EntryState.WARM
                entry.times_warmed += 1
                self.metrics.prompts.inc()

    def prefill_done(
        self, step: PrefillStep, seconds: float, alone: bool = True
    ) -> None:
        """The step's request ended and the engine is idle again.

        Not ``alone``: real requests came meanwhile, so that ``seconds`` contains
        their work and says nothing about the size of steps.
        """
        self.metrics.seconds.inc(seconds)
        entry = self._listing.known(step.name)
        if entry is None or entry.serial != step.serial:
            return
        before = entry.cached
        self._look_up(entry)
        if entry.cached <= before:
            self.metrics.aborted.inc()
            entry.failures += 1
            if entry.failures >= MAX_FAILURES:
                self._give_up(
                    entry,
                    EntryState.FAILED,
                    f"{MAX_FAILURES} steps in a row ended without their KV cached",
                )
            return
        entry.failures = 0
        self.metrics.tokens.inc(entry.cached - before)
        if alone:
            self.step_size.took(entry.cached - before, seconds)
        # It may have taken the place of another entry.
        self._verify_due = True
        if entry.cached >= self._target(entry):
            self._became_warm(entry, computed=True)

    def prefill_withdrawn(self, step: PrefillStep, no_room: bool) -> None:
        """The step's request was taken back: for real requests, or for want of room."""
        self.metrics.aborted.inc()
        entry = self._listing.known(step.name)
        if no_room and entry is not None and entry.serial == step.serial:
            self._give_up(
                entry, EntryState.NO_ROOM, "the KV pool has no room for its next chunk"
            )

    def _give_up(self, entry: Entry, state: EntryState, message: str) -> None:
        entry.state, entry.message = state, message
        entry.failures = 0
        entry.settled_epoch = self._epoch
        logger.warning("Cache warming: prompt %r: %s", entry.name, message)

    def _became_warm(self, entry: Entry, computed: bool) -> None:
        if entry.times_warmed == 0:
            self.metrics.prompts.inc()
        elif computed:
            self.metrics.rewarmed.inc()
        entry.state = EntryState.WARM
        entry.message = ""
        entry.times_warmed += 1
        entry.settled_epoch = self._epoch
        if entry.spec.pin_seconds is not None:
            entry.pin_until = self._clock() + entry.spec.pin_seconds
