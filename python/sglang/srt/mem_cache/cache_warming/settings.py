# SPDX-License-Identifier: Apache-2.0
"""Settings of cache warming, and their check before anything is loaded.

Free of torch and of the scheduler: ``ServerArgs`` is checked with it.
"""

from __future__ import annotations

from typing import Any, Optional

import msgspec

FLAG = "--cache-warming-prompts"
MODE_FLAG = "--cache-warming-mode"
CHUNK_FLAG = "--cache-warming-chunk-size"
BUDGET_FLAG = "--cache-warming-budget-tokens"
MODES = ("kv", "tree")
# The policies that read hints (tree mode).
HINTED_POLICIES = ("lpm", "dfs-weight")
# Without the chunk flag: steps of about so long, and of at most so many tokens.
DEFAULT_STEP_S = 0.05
MOST_CHUNK_TOKENS = 512
# Share of the KV pool that warmed prompts may take unless the flag says otherwise.
DEFAULT_BUDGET_SHARE = 0.25


class WarmingSettings(msgspec.Struct, frozen=True):
    """Resolved settings of one scheduler.

    Attributes:
        path: the prompts file.
        mode: "kv" computes the prompts' KV, "tree" only orders the queue by them.
        chunk_tokens: most tokens one step prefills, a multiple of ``page_size``.
        step_s: seconds a step should take, see ``StepSize``; None to fix its size.
        budget_tokens: tokens of the KV pool that warmed prompts may take together.
        page_size: tokens of a KV page.
        uncached_tail: trailing tokens that the tree never caches (1 for a tree
            keyed by bigrams, as under EAGLE).
        max_prompt_tokens: longest prompt the server accepts.
        low_priority_first: order of entries by their priority.
    """

    path: str
    mode: str
    chunk_tokens: int
    budget_tokens: int
    step_s: Optional[float] = None
    page_size: int = 1
    uncached_tail: int = 0
    max_prompt_tokens: int = 2**31
    low_priority_first: bool = False

    def cacheable(self, num_tokens: int) -> int:
        """Tokens of a prompt of ``num_tokens`` that the tree can hold."""
        usable = max(0, num_tokens - self.uncached_tail)
        return usable // self.page_size * self.page_size


def chunk_tokens(
    wanted: Optional[int], chunked_prefill: Optional[int], page_size: int
) -> int:
    """Most tokens of one step: as asked, but one prefill batch and whole pages."""
    chunk = MOST_CHUNK_TOKENS if wanted is None else wanted
    if chunked_prefill is not None and chunked_prefill > 0:
        chunk = min(chunk, chunked_prefill)
    return max(page_size, chunk // page_size * page_size)


def budget_tokens(wanted: Optional[int], pool_tokens: int) -> int:
    """Tokens warmed prompts may take of a pool of ``pool_tokens``.

    Raises:
        ValueError: more than the pool holds.
    """
    if wanted is None:
        return int(pool_tokens * DEFAULT_BUDGET_SHARE)
    if wanted > pool_tokens:
        raise ValueError(
            f"{BUDGET_FLAG} {wanted} is more than the KV pool of this server holds; "
            f"use 1 to {pool_tokens}"
        )
    return wanted


def check_cache_warming(cfg: Any) -> None:
    """Start-up check of the flags and of the file's form.

    ``cfg`` is the resolved view of the server arguments. Needs no tokenizer, so a
    malformed file ends the start before weights are loaded. Lengths are checked
    once tokenizer and KV pool exist (``factory.py``).

    Raises:
        ValueError: a flag's value, a combination that cannot work, or the file.
            The text names flag or entry, what is wrong and what is allowed.
    """
    if cfg.cache_warming_prompts is None:
        for flag, value, default in (
            (MODE_FLAG, cfg.cache_warming_mode, "kv"),
            (CHUNK_FLAG, cfg.cache_warming_chunk_size, None),
            (BUDGET_FLAG, cfg.cache_warming_budget_tokens, None),
        ):
            if value != default:
                raise ValueError(f"{flag} {value} has no effect without {FLAG} FILE")
        return
    if cfg.cache_warming_mode not in MODES:
        raise ValueError(
            f"{MODE_FLAG} {cfg.cache_warming_mode!r} is not known; use "
            + " or ".join(MODES)
        )
    _check_number(CHUNK_FLAG, cfg.cache_warming_chunk_size)
    _check_number(BUDGET_FLAG, cfg.cache_warming_budget_tokens)
    for name, set_, why in (
        ("--disable-radix-cache", cfg.disable_radix_cache, "it has no prefix cache"),
        (
            "--disaggregation-mode decode",
            cfg.disaggregation_mode == "decode",
            "a decode instance prefills nothing; warm the prefill instances",
        ),
        ("--dllm-algorithm", cfg.dllm_algorithm is not None, "not supported with it"),
        ("--enable-pdmux", cfg.enable_pdmux, "not supported with it"),
    ):
        if set_:
            raise ValueError(f"{FLAG} cannot be combined with {name}: {why}")
    if cfg.cache_warming_mode == "tree":
        _check_tree_mode(cfg)
    elif cfg.enable_dp_attention:
        raise ValueError(
            f"{FLAG} cannot be combined with --enable-dp-attention in {MODE_FLAG} kv: "
            "a control request waits for the end of a group's own step, while the "
            "other groups take it at once; only mode tree, which computes nothing, "
            "is allowed"
        )

    from sglang.srt.mem_cache.cache_warming.prompt_file import load_prompt_file

    load_prompt_file(cfg.cache_warming_prompts)


def _check_number(flag: str, value: Optional[int]) -> None:
    if value is not None and value < 1:
        raise ValueError(f"{flag} {value} is not allowed; use a number of at least 1")


def _check_tree_mode(cfg: Any) -> None:
    # With --schedule-policy-config, fcfs with priorities orders by prefix as well.
    by_prefix = cfg.schedule_policy in HINTED_POLICIES or (
        getattr(cfg, "schedule_policy_config", None) is not None
    )
    if not by_prefix:
        raise ValueError(
            f"{MODE_FLAG} tree only changes the order of the waiting queue, and only "
            f"--schedule-policy {' or '.join(HINTED_POLICIES)} reads it; got "
            f"{cfg.schedule_policy} without --schedule-policy-config"
        )
    for flag, value in (
        (CHUNK_FLAG, cfg.cache_warming_chunk_size),
        (BUDGET_FLAG, cfg.cache_warming_budget_tokens),
    ):
        if value is not None:
            raise ValueError(
                f"{flag} {value} has no effect with {MODE_FLAG} tree, which computes "
                "no KV; drop it"
            )
