# SPDX-License-Identifier: Apache-2.0
"""Two tensor-parallel ranks over gloo: one decides, both take the same steps.

Ranks that went apart would hang in the next collective operation, or answer wrongly.
"""

from __future__ import annotations

import json
import os
import time

import pytest
from served import LONG, REQUESTS, states, wait_warm

from harness import ClosedLoop, Request, drive, require_success

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="each rank is bound to a core"),
]


@pytest.fixture
def ranks(serve_with, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "two-ranks.json"
    listed = [
        {"name": "manual", "text": LONG, "pin_seconds": 2},
        {"name": "long", "input_ids": [60 + i % 150 for i in range(400)], "priority": -1},
    ]
    path.write_text(json.dumps({"prompts": listed}))
    return serve_with(
        {
            "tp_size": 2,
            "schedule_policy": "lpm",
            "schedule_policy_config": {"aging": "tokens", "matches_per_pass": 4},
            "max_running_requests": 2,
            "cache_warming_prompts": str(path),
            "cache_warming_budget_tokens": 3000,
        },
        env={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"},
        name="two-ranks",
    )


def ask(server, requests, clients=1):
    results = drive(server.url, requests, ClosedLoop(clients))
    require_success(results)
    return results


def test_warm_answers_are_cold_answers(ranks):
    prompts = wait_warm(ranks)
    question = Request(LONG + "\nWhat is on page four?", 12)
    (warm,) = ask(ranks, [question])
    (cold,) = ask(ranks, [Request(question.prompt, 12, extra={"extra_key": "never seen"})])
    assert (warm.cached_tokens, cold.cached_tokens) == (prompts["manual"]["tokens"], 0)
    assert warm.output_ids == cold.output_ids


def test_pins_expire_and_a_flush_warms_anew(ranks):
    ranks.flush_cache()
    assert wait_warm(ranks)["manual"]["times_warmed"] >= 2
    deadline = time.monotonic() + 30
    while states(ranks)[0]["manual"]["pinned"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_queue_in_prefix_order_while_prompts_are_warmed(ranks):
    """Arrivals, steps and the endpoint at the same time, at any moment of the loop."""
    alone = [r.output_ids for r in ask(ranks, REQUESTS)]
    for turn in range(4):
        ranks.flush_cache()
        ranks.post("/cache_warming", {"prompts": [{"name": f"t{turn}", "text": f"{turn}" * 300}]})
        mixed = ask(ranks, REQUESTS * 3, clients=3 * len(REQUESTS))
        assert [r.output_ids for r in mixed] == alone * 3
    assert all(p["state"] == "warm" for p in wait_warm(ranks).values())
