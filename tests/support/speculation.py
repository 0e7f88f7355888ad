# SPDX-License-Identifier: Apache-2.0
"""What speculative decoding must leave as it is, asked of a real server."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterable, Sequence

from harness import ClosedLoop, Request, Server, drive, require_success

SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": ["s", "m", "l"]}, "count": {"enum": [1, 2]}},
    "required": ["size", "count"],
    "additionalProperties": False,
}


def varied_prompts(
    seed: int, lengths: Iterable[int], phrases: Sequence[int] = (1, 3, 8, 500)
) -> list[list[int]]:
    """Prompts that repeat a phrase of one of these lengths (a long one does not come back), so
    that drafts are long, short and wrong."""
    rng = random.Random(seed)
    prompts = []
    for length in lengths:
        phrase = [rng.randrange(33, 127) for _ in range(rng.choice(phrases))]
        prompts.append((phrase * 200)[:length])
    return prompts


def assert_json_schema_is_kept(server: Server) -> None:
    """A grammar masks the draft tree (upstream issue 17576: it crashed with NGRAM)."""
    answer = server.generate("An order: ", 80, json_schema=json.dumps(SCHEMA))
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"
    assert set(json.loads(answer["text"])) == set(SCHEMA["properties"])


def assert_retraction_changes_nothing(
    server: Server, requests: Sequence[Request], expected: list[list[int]]
) -> None:
    """All requests at once, on a server whose memory cannot hold them to their end."""
    counter = "sglang:num_retracted_requests_total"
    before = server.metrics().get(counter)  # it appears with the first retraction
    results = drive(server.url, requests, ClosedLoop(len(requests)))
    require_success(results)
    assert server.metrics().get(counter) > before
    assert [r.output_ids for r in results] == expected


class Abandoned:
    """A request that decodes until it is aborted.

    Used as a context: the block runs while it decodes; at its end it is aborted.
    """

    def __init__(self, server: Server, prompt: Sequence[int], new_tokens: int = 1500) -> None:
        self._server, self._rid = server, "gone"
        body = {
            "rid": self._rid,
            "input_ids": list(prompt),
            "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True},
        }
        self.answer: dict = {}
        self._thread = threading.Thread(
            target=lambda: self.answer.update(server.post("/generate", body, timeout=300))
        )

    def __enter__(self) -> Abandoned:
        self._thread.start()
        time.sleep(0.5)
        return self

    def __exit__(self, *error: object) -> None:
        deadline = time.monotonic() + 120
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._server.request("POST", "/abort_request", json={"rid": self._rid})
            self._thread.join(0.5)
        if error[0] is None:
            assert self.answer["meta_info"]["finish_reason"]["type"] == "abort"
