# SPDX-License-Identifier: Apache-2.0
"""Which accepted tokens are still missing from a request's output."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch
from sglang.srt.speculative.drained_result import without_processed


def request(prompt, output):
    return SimpleNamespace(origin_input_ids=[0] * prompt, output_ids=[0] * output)


def batch(*requests, lengths):
    tensor = None if lengths is None else torch.tensor(lengths)
    return SimpleNamespace(reqs=requests, seq_lens_cpu=tensor)


def test_queued_result_is_missing():
    # 10 prompt tokens and 1 output token are known; the round accepted 3, so the KV of
    # 10 + 3 tokens is in the cache.
    assert without_processed(batch(request(10, 1), lengths=[13]), [3]) == [3]


def test_processed_result_is_not_added_again():
    assert without_processed(batch(request(10, 4), lengths=[13]), [3]) == [0]


def test_first_token_after_the_prefill():
    assert without_processed(batch(request(10, 0), lengths=[10]), [1]) == [1]
    assert without_processed(batch(request(10, 1), lengths=[10]), [1]) == [0]


def test_each_request_by_itself():
    rows = batch(request(10, 1), request(7, 6), lengths=[12, 12])
    assert without_processed(rows, [2, 5]) == [2, 0]


def test_without_lengths_on_the_host_nothing_changes():
    assert without_processed(batch(request(1, 1), lengths=None), [4]) == [4]
