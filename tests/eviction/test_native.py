# SPDX-License-Identifier: Apache-2.0
"""The C++ inner loops give the bits of the Python ones, and refuse what does not fit."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from eviction_trees import key_of
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.mem_cache.adaptive_eviction import native, page_hash, reuse_model
from sglang.srt.mem_cache.adaptive_eviction.page_hash import page_hashes
from sglang.srt.mem_cache.radix_cache import RadixKey

reuse = pytest.importorskip("sgl_kernel_ext.reuse")

TOKEN = st.one_of(st.integers(0, 200_000), st.sampled_from([-1, 2**63 - 1, -(2**63)]))


def without_extension(function, *args):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "kernels", None)
        return function(*args)


@settings(max_examples=200, deadline=None)
@given(
    tokens=st.lists(TOKEN, max_size=40),
    first=st.integers(0, 10),
    page_size=st.integers(1, 5),
    position=st.integers(0, 9000),
    base=st.integers(0, 2**64 - 1),
    pairs=st.booleans(),
)
def test_page_hashes_are_the_same(tokens, first, page_size, position, base, pairs):
    key = RadixKey(array("q", tokens))
    if pairs and len(tokens) > 1:
        key = key.maybe_to_bigram_view(True)[0]
    args = (key, min(first, len(key)), position, base, page_size)
    found, expected = page_hashes(*args), without_extension(page_hashes, *args)
    assert found.dtype == expected.dtype == np.uint64
    np.testing.assert_array_equal(found, expected)


def test_tokens_can_grow_after_they_were_hashed():
    tokens = array("q", range(8))
    page_hashes(RadixKey(tokens), 0, 0, 0, 1)
    tokens.append(8)
    assert len(tokens) == 9


def test_keys_that_are_lists_are_hashed_too():
    tokens = list(range(1, 9))
    np.testing.assert_array_equal(
        page_hashes(RadixKey(tokens), 2, 2, 5, 2), page_hashes(key_of(tokens), 2, 2, 5, 2)
    )


@pytest.mark.parametrize("classes", [1, 7, 8, 9, 80])
def test_the_index_is_the_same(classes):
    draw = np.random.default_rng(classes)
    # From hazards of classes never reused up to the greatest possible.
    hazard = draw.random((classes, reuse_model.BINS)) ** 8 * reuse_model.MAX_HAZARD
    hazard[0] = 0.0
    found = reuse_model.best_ratios(hazard)
    expected = without_extension(reuse_model.best_ratios, hazard)
    assert found.tobytes() == np.ascontiguousarray(expected).tobytes()


def test_both_are_used_where_installed():
    assert native.kernels is reuse
    assert page_hash.native is reuse_model.native is native


@pytest.mark.parametrize(
    ("first", "page_size", "pairs", "pages"),
    [(0, 1, False, 5), (3, 1, False, 2), (0, 2, False, 3), (0, 1, True, 4), (9, 1, False, 0)],
)
def test_pages_beyond_the_tokens_are_refused(first, page_size, pairs, pages):
    with pytest.raises(ValueError, match="exceed 4 tokens"):
        reuse.page_hashes(
            array("q", range(4)), first, page_size, pairs, 0, 0, np.empty(pages, np.uint64)
        )


def test_arguments_that_do_not_fit_are_refused():
    out = np.empty(4, np.uint64)
    with pytest.raises(ValueError, match="page_size must be at least 1"):
        reuse.page_hashes(array("q", range(4)), 0, 0, False, 0, 0, out)
    with pytest.raises(ValueError, match="tokens must have elements of 8 bytes"):
        reuse.page_hashes(array("i", range(4)), 0, 1, False, 0, 0, out)
    with pytest.raises(TypeError, match="bytes-like object is required, not .list"):
        reuse.page_hashes([1, 2, 3, 4], 0, 1, False, 0, 0, out)
    with pytest.raises(ValueError, match="multiple of 3 elements, not 4 and 4"):
        reuse.best_ratios(np.zeros(4), np.ones(3), np.zeros(4))
    with pytest.raises(ValueError, match="multiple of 2 elements, not 4 and 2"):
        reuse.best_ratios(np.zeros(4), np.ones(2), np.zeros(2))
