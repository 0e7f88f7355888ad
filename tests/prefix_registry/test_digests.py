# SPDX-License-Identifier: Apache-2.0
"""Page hashes: the documented form, upstream's C++ and the Python fallback agree."""

from __future__ import annotations

from array import array

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from identities import page_digests
from sglang.srt.disaggregation.prefix_registry.digests import (
    PageChain,
    hash_pages,
    hash_pages_in_python,
    namespace_seed,
)
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=40)
names = st.one_of(st.none(), st.text(max_size=5))


@settings(max_examples=150, deadline=None)
@given(tokens, st.integers(1, 8), names, names, st.booleans())
def test_chain_equals_the_documented_form(tokens, page_size, extra_key, salt, bigram):
    chain = PageChain(tokens, page_size, bigram=bigram, extra_key=extra_key, cache_salt=salt)
    wanted = page_digests(tokens, page_size, extra_key, salt, bigram)
    assert chain.pages == len(wanted)
    for pages in (1, 3, 1000):  # asked piece by piece
        assert chain.between(0, pages) == b"".join(wanted[:pages])
    assert chain.between(1, 3) == b"".join(wanted[1:3])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2**63 - 1), max_size=40), st.integers(1, 8), st.booleans())
def test_python_equals_cpp_also_for_wide_ids(tokens, page_size, bigram):
    whole = array("q", tokens)
    units = max(0, len(whole) - 1) if bigram else len(whole)
    cut = whole[: units // page_size * page_size + bigram] if units >= page_size else array("q")
    seed = namespace_seed("tenant", None)
    wanted = hash_pages(whole, page_size, seed, bigram=bigram)
    if cut:
        assert hash_pages_in_python(cut, page_size, seed, bigram) == wanted
    else:
        assert wanted == b""


@pytest.mark.parametrize("bigram", [False, True])
def test_equals_what_the_tree_stores(bigram):
    key = RadixKey(array("q", range(17)), "tenant", is_bigram=bigram, cache_salt="s")
    pages = get_storage_hash_str(key[:16] if not bigram else key, None, page_size=4)
    chain = PageChain(range(17), 4, bigram=bigram, extra_key="tenant", cache_salt="s")
    assert chain.between(0, 100).hex() == "".join(pages)
