# SPDX-License-Identifier: Apache-2.0
"""What the tests on real servers share: prompts, requests, and asking for states."""

from __future__ import annotations

import time

from harness import ClosedLoop, Request, drive, require_success

PAGE = 8
LONG = "A manual that many questions share. " * 12
SYSTEM = "You answer questions about a manual. Be brief. " * 5
KEY = {"Authorization": "Bearer warm-key"}
PROMPTS = [
    {"name": "manual", "text": LONG, "priority": 2},
    {"name": "chat", "messages": [{"role": "system", "content": SYSTEM}], "pin_seconds": 600},
    {"name": "ids", "input_ids": list(range(40, 140)), "extra_key": "tenant", "cache_salt": "s"},
]
REQUESTS = [
    Request(LONG + "\nWhat is on page one?", 12),
    Request(LONG + "\nAnd on page two?", 12),
    Request([{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hi"}], 12),
    Request([*range(40, 140), 7, 8, 9], 12, extra={"extra_key": "tenant", "cache_salt": "s"}),
    Request([*range(40, 140), 7, 8, 9], 12),
    Request("Something else entirely.", 12),
    Request(LONG, 12),
]


def answers(server):
    """(text, token ids) of every request: one by one, then all at once."""
    results = [
        *drive(server.url, REQUESTS, ClosedLoop(1)),
        *drive(server.url, REQUESTS, ClosedLoop(len(REQUESTS))),
    ]
    require_success(results)
    return [(r.text, r.output_ids) for r in results], results


def states(server, headers=None):
    (rank,) = server.request("GET", "/cache_warming", headers=headers).json()["ranks"]
    return {p["name"]: p for p in rank["prompts"]}, rank


def wait_warm(server, headers=None, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while True:
        prompts, _ = states(server, headers)
        if all(p["state"] == "warm" for p in prompts.values()):
            return prompts
        assert time.monotonic() < deadline, prompts
        time.sleep(0.1)
