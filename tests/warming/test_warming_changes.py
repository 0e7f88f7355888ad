# SPDX-License-Identifier: Apache-2.0
"""New weights on a real server: what was warmed is dropped and warmed anew."""

from __future__ import annotations

import pytest
from served import KEY, LONG, wait_warm

from harness import Request, drive, require_success

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def other_weights():
    from models import tiny

    return tiny.ensure(tiny.TinyConfig(seed=7))


def ask(server, **extra):
    (result,) = results = drive(server.url, [Request(LONG + "\nWhat else?", 12, extra=extra)])
    require_success(results)
    return result


@pytest.mark.parametrize("flush", [True, False])
def test_new_weights(warm, tiny_model, other_weights, flush):
    def update(folder, flush=flush):
        body = {"model_path": str(folder), "flush_cache": flush}
        answer = warm.request(
            "POST", "/update_weights_from_disk", json=body, headers=KEY, timeout=120
        )
        assert answer.json()["success"]

    # What other tests cached on top of the prompts would keep them with flush_cache=false.
    warm.request("POST", "/flush_cache", headers=KEY)
    before = wait_warm(warm, KEY)
    old = ask(warm, extra_key=f"before, {flush}")
    try:
        update(other_weights)
        after = wait_warm(warm, KEY)
        assert all(after[name]["times_warmed"] > before[name]["times_warmed"] for name in before)
        assert after["chat"]["pinned"]
        new = ask(warm)
        assert new.cached_tokens >= 0.95 * after["manual"]["tokens"]
        # The same prompt where nothing is cached: computed by the new weights alone.
        cold = ask(warm, extra_key=f"never seen, {flush}")
        assert cold.cached_tokens == 0
        assert new.output_ids == cold.output_ids
        assert new.output_ids != old.output_ids
    finally:
        update(tiny_model, flush=True)
    wait_warm(warm, KEY)
    assert ask(warm).output_ids == old.output_ids
