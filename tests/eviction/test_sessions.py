# SPDX-License-Identifier: Apache-2.0
"""Open sessions protect their paths (``--enable-session-radix-cache``)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from eviction_trees import cached, check, evict, make_cache, match, serve
from sglang.srt.mem_cache.adaptive_eviction import find_policy

A, B, C = list(range(1, 9)), list(range(20, 28)), list(range(40, 48))


def keep(cache, session: str, tokens) -> None:
    """What the end of a request of ``session`` registers."""
    req = SimpleNamespace(
        session=None,
        session_id=session,
        session_generation=cache.ensure_session_generation(session),
    )
    cache.session_refs.register_session_ref(req, match(cache, tokens).last_device_node)


@pytest.mark.parametrize(
    ("policy", "config"),
    [
        ("adaptive", {"block_tokens": 1, "trim_tokens": 1}),
        ("adaptive", {"mode": "weighted", "trim_tokens": 1}),
        ("lru", {"trim": True, "trim_tokens": 1}),
    ],
)
def test_sessions_protect_until_they_close(policy, config):
    cache = make_cache(24, policy, config, enable_session_radix_cache=True)
    reuse = find_policy(cache)
    for arrival, tokens in enumerate((A, B, C), 1):
        serve(cache, reuse, tokens, arrival=float(arrival))
    keep(cache, "one", A)  # the oldest
    keep(cache, "two", B)
    keep(cache, "three", B)  # more sessions protect longer
    assert evict(cache, 6) == 6
    assert [cached(cache, t) for t in (A, B, C)] == [8, 8, 2]
    assert evict(cache, 6) == 6
    assert [cached(cache, t) for t in (A, B, C)] == [4, 8, 0]
    cache.release_radix_session("two")
    cache.release_radix_session("three")
    assert evict(cache, 4) == 4
    assert [cached(cache, t) for t in (A, B)] == [4, 4]
    # Evicting a session's leaf moves its reference up: nothing is left over.
    assert evict(cache, 8) == 8
    assert cache.tree_core.evictable_size() == 0
    check(cache, reuse)
