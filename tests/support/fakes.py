# SPDX-License-Identifier: Apache-2.0
"""Specifications of the fake server, and a wait that polls."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from harness import ServerSpec, flag_arguments

FAKE_SERVER = Path(__file__).with_name("fake_server.py")


def fake(ready_timeout_s: float = 20.0, grace_s: float = 0.5, **flags) -> ServerSpec:
    """Returns what starts the fake server with ``flags``."""
    return ServerSpec(
        name="fake",
        command=[
            sys.executable,
            str(FAKE_SERVER),
            *("--host", "{host}", "--port", "{port}"),
            *flag_arguments(flags),
        ],
        ready_timeout_s=ready_timeout_s,
        grace_s=grace_s,
    )


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Polls ``condition`` until it holds; returns whether it did within ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
