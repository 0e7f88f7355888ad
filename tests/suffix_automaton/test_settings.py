# SPDX-License-Identifier: Apache-2.0
"""The flags are checked at start-up."""

from __future__ import annotations

import builtins
from types import SimpleNamespace

import pytest

settings = pytest.importorskip(
    "sglang.srt.speculative.suffix_automaton.settings",
    reason="topic ngram-sam is not in this build",
)


def flags(**chosen):
    values = {settings.PREFIX + name: value for name, value in settings.DEFAULTS.items()}
    values |= {
        "speculative_ngram_use_sam": True,
        "speculative_algorithm": "NGRAM",
        "speculative_num_draft_tokens": 12,
        "speculative_ngram_max_trie_depth": 18,
        "speculative_ngram_capacity": 10_000_000,
        **chosen,
    }
    return SimpleNamespace(**values)


def test_defaults_are_accepted():
    pytest.importorskip("sgl_kernel_ext")
    settings.check_server_args(flags())
    settings.check_server_args(flags(speculative_ngram_use_sam=False, speculative_algorithm=None))
    settings.check_server_args(flags(speculative_ngram_capacity=18))  # the trie stays empty


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (
            {"speculative_ngram_sam_threshold": 2.0},
            "--speculative-ngram-sam-threshold must be between 0 and 1, not 2.0",
        ),
        (
            {"speculative_ngram_sam_max_shared_tokens": 1},
            "--speculative-ngram-sam-max-shared-tokens must be between 64 and .*, not 1",
        ),
        (
            {"speculative_num_draft_tokens": 65},
            "--speculative-num-draft-tokens must be between 1 and 64, not 65",
        ),
        (
            {"speculative_ngram_sam_pause_below": -1.0},
            "--speculative-ngram-sam-pause-below must be between 0 and",
        ),
        ({"speculative_algorithm": "EAGLE"}, "needs --speculative-algorithm NGRAM, not EAGLE"),
        (
            {"speculative_ngram_use_sam": False, "speculative_ngram_sam_mode": "fast"},
            "--speculative-ngram-sam-mode fast has no effect without --speculative-ngram-use-sam",
        ),
        (
            {"speculative_ngram_sam_corpus": "always", "speculative_ngram_capacity": 18},
            r"--speculative-ngram-capacity must be above .*-depth \(18\) .* always, not 18",
        ),
    ],
)
def test_refusals_name_flag_value_and_what_is_allowed(chosen, message):
    pytest.importorskip("sgl_kernel_ext")
    with pytest.raises(ValueError, match=message):
        settings.check_server_args(flags(**chosen))


def test_without_the_extension_it_refuses_and_says_how_to_install_it(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("sgl_kernel_ext"):
            raise ImportError("No module named 'sgl_kernel_ext'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"pip install \./sgl-kernel-ext"):
        settings.check_server_args(flags())
    settings.check_server_args(flags(speculative_ngram_use_sam=False))
