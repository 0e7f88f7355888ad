# SPDX-License-Identifier: Apache-2.0
"""The table of digests, in C++ and in Python, against a dictionary."""

from __future__ import annotations

import hashlib
import threading

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from sglang.srt.disaggregation.prefix_registry.table import PythonDigestTable, make_table

native = pytest.importorskip("sgl_kernel_ext.prefix_table").DigestTable
TABLES = {"native": native, "python": PythonDigestTable}
UNBOUNDED = 2**31


def digests(numbers) -> bytes:
    return b"".join(hashlib.sha256(b"%d" % number).digest() for number in numbers)


numbers = st.lists(st.integers(0, 60), max_size=30)
operations = st.one_of(
    st.tuples(st.just("store"), numbers, st.sampled_from([1, 2, 3, 64])),
    st.tuples(st.just("remove"), numbers, st.sampled_from([1, 2, 3, 64])),
    st.tuples(st.just("clear")),
    st.tuples(st.just("ask"), numbers),
)


@pytest.mark.parametrize("name", TABLES)
@settings(max_examples=200, deadline=None)
@given(history=st.lists(operations, max_size=30))
def test_equals_a_dictionary(name, history):
    table, model = TABLES[name](UNBOUNDED), {}
    for operation, *arguments in history:
        if operation == "clear":
            table.clear()
            model.clear()
            continue
        asked = arguments[0]
        if operation == "store":
            tier = arguments[1]
            fresh = len(set(asked) - set(model))
            assert table.store(digests(asked), tier) == fresh
            for number in asked:
                model[number] = model.get(number, 0) | tier
        elif operation == "remove":
            tier, before = arguments[1], len(model)
            for number in asked:
                if number in model:
                    model[number] &= ~tier
                    if not model[number]:
                        del model[number]
            assert table.remove(digests(asked), tier) == before - len(model)
        else:
            prefix = next((i for i, n in enumerate(asked) if n not in model), len(asked))
            assert table.longest_prefix(digests(asked)) == prefix
            assert list(table.tiers(digests(asked))) == [model.get(n, 0) for n in asked]
        assert len(table) == len(model)
    found, tiers = table.dump()
    assert {found[32 * i : 32 * i + 32]: tier for i, tier in enumerate(tiers)} == {
        digests([number]): tier for number, tier in model.items()
    }


@pytest.mark.parametrize("name", TABLES)
def test_many_blocks_through_growth_and_removal(name):
    table = TABLES[name](UNBOUNDED)
    everything = digests(range(30_000))
    assert table.store(everything, 1) == 30_000
    assert table.longest_prefix(everything) == 30_000
    gone = b"".join(everything[32 * i : 32 * i + 32] for i in range(0, 30_000, 3))
    assert table.remove(gone, 1) == 10_000
    held = table.tiers(everything)
    assert [bool(tier) for tier in held] == [i % 3 != 0 for i in range(30_000)]


@pytest.mark.parametrize("name", TABLES)
def test_the_bound_holds_and_what_was_given_up_is_counted(name):
    table = TABLES[name](1000)
    for start in range(0, 5000, 50):
        table.store(digests(range(start, start + 50)), 1)
        assert len(table) <= 1000
    assert table.evicted == 4000
    known = {bytes(table.dump()[0][32 * i : 32 * i + 32]) for i in range(1000)}
    assert known <= {digests([number]) for number in range(5000)}
    assert table.longest_prefix(digests(range(4950, 5000))) == 50


def test_looked_up_blocks_outlast_the_others():
    table = native(1000)
    hot = digests(range(100))
    table.store(hot, 1)
    for start in range(1000, 9000, 100):
        assert table.longest_prefix(hot) == 100
        table.store(digests(range(start, start + 100)), 1)
    assert table.longest_prefix(hot) == 100


def test_memory_of_a_block():
    table = native(UNBOUNDED)
    for size in (50_000, 100_000, 200_000):
        table.store(digests(range(size)), 1)
        assert table.nbytes / size < 48


@pytest.mark.parametrize("name", TABLES)
def test_bad_input(name):
    table = TABLES[name](10)
    with pytest.raises(ValueError, match="multiple of 32 bytes, not 31"):
        table.store(b"x" * 31, 1)
    for tier in (0, 128):
        with pytest.raises(ValueError, match=f"between 1 and 127, not {tier}"):
            table.store(b"x" * 32, tier)
    with pytest.raises(ValueError, match="max_blocks must be between 1 and"):
        TABLES[name](0)
    assert len(table) == 0


def test_threads_see_whole_calls():
    table, stop, wrong = make_table(UNBOUNDED), threading.Event(), []
    block = digests(range(500))

    def look():
        while not stop.is_set():
            found = table.longest_prefix(block)
            if found not in (0, 500):
                wrong.append(found)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(300):
        table.store(block, 1)
        table.clear()
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong
