# SPDX-License-Identifier: Apache-2.0
"""Flags of the suffix-automaton proposer and their check at start-up.

Free of torch: ``ServerArgs`` is checked with it.
"""

from __future__ import annotations

from typing import Any

FLAG = "--speculative-ngram-use-sam"
PREFIX = "speculative_ngram_sam_"
# Flag (without the prefix) -> setting of the proposer that it becomes.
_SETTINGS = {
    "mode": "mode",
    "threshold": "threshold",
    "max_request_tokens": "max_request_tokens",
    "max_total_tokens": "max_total_tokens",
    "max_shared_tokens": "max_shared_tokens",
    "pause_below": "pause_below",
}
DEFAULTS = {
    "mode": "full",
    "threshold": 0.0,
    "disable_sharing": False,
    "max_request_tokens": 1 << 20,
    "max_total_tokens": 1 << 24,
    "max_shared_tokens": 1 << 19,
    "pause_below": 0.05,
    "corpus": "external",
    "verify_width": "auto",
}


def flag_name(setting: str) -> str:
    """The command line's spelling of a setting of ``DEFAULTS``."""
    return "--" + (PREFIX + setting).replace("_", "-")


def load_extension() -> Any:
    """The proposer's module.

    Raises:
        ValueError: it is not installed; the text says how to install it.
    """
    try:
        from sgl_kernel_ext import suffix_automaton
    except ImportError as error:
        raise ValueError(
            f"{FLAG} needs the package sgl-kernel-ext, which cannot be imported "
            f"({error}). Install it with `pip install ./sgl-kernel-ext` from this "
            "fork's repository, or leave the flag out."
        ) from None
    return suffix_automaton


def proposer_config(cfg: Any, vocab_size: int) -> Any:
    """The proposer's settings as the flags say.

    Args:
        cfg: view of the server arguments, ``speculative_num_draft_tokens`` resolved.
        vocab_size: ids from here on are no text.

    Raises:
        ValueError: naming the flag, its value and what is allowed.
    """
    module = load_extension()
    chosen = {
        name: getattr(cfg, PREFIX + setting) for setting, name in _SETTINGS.items()
    }
    try:
        return module.ProposerConfig(
            draft_token_num=cfg.speculative_num_draft_tokens,
            vocab_size=vocab_size,
            share_outputs=not getattr(cfg, PREFIX + "disable_sharing"),
            **chosen,
        )
    except ValueError as error:
        setting = str(error).split(" ", 1)[0]
        flags = {name: flag_name(key) for key, name in _SETTINGS.items()}
        flags["draft_token_num"] = "--speculative-num-draft-tokens"
        raise ValueError(
            str(error).replace(setting, flags.get(setting, setting), 1)
        ) from None


def check_server_args(cfg: Any) -> None:
    """Start-up check of ``--speculative-ngram-use-sam`` and the flags beside it.

    ``cfg`` is the resolved view of the server arguments.

    Raises:
        ValueError: a value, a combination, or the missing package.
    """
    if not cfg.speculative_ngram_use_sam:
        for setting, default in DEFAULTS.items():
            value = getattr(cfg, PREFIX + setting)
            if value != default:
                raise ValueError(
                    f"{flag_name(setting)} {value} has no effect without {FLAG}"
                )
        return
    if cfg.speculative_algorithm != "NGRAM":
        raise ValueError(
            f"{FLAG} needs --speculative-algorithm NGRAM, "
            f"not {cfg.speculative_algorithm}"
        )
    proposer_config(cfg, vocab_size=1)
    depth = cfg.speculative_ngram_max_trie_depth
    if (
        getattr(cfg, PREFIX + "corpus") == "always"
        and cfg.speculative_ngram_capacity <= depth
    ):
        # Upstream's trie ends the process when an insertion meets it (issue 36495).
        raise ValueError(
            f"--speculative-ngram-capacity must be above --speculative-ngram-max-trie-depth "
            f"({depth}) with {flag_name('corpus')} always, "
            f"not {cfg.speculative_ngram_capacity}"
        )
