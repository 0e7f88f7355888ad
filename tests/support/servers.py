# SPDX-License-Identifier: Apache-2.0
"""Real servers that tests share: the same flags give the same running server."""

from __future__ import annotations

import importlib.util
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness import Server, ServerSpec

# Two at a time: enough to compare a feature on and off without starting either again. Each
# takes about 1.5 GB of memory.
MOST_ALIVE = 2

BASE_FLAGS: Mapping[str, Any] = {
    "dtype": "float32",
    "enable_metrics": True,
    "enable_cache_report": True,
    "max_total_tokens": 4096,
    "sleep_on_idle": True,  # idle servers must not take the cores from the one under test
    "random_seed": 1,
    "constrained_json_disable_any_whitespace": True,  # a random model would write it for ever
}


class ServerPool:
    """Starts servers on demand and keeps the last ``MOST_ALIVE`` that were asked for."""

    def __init__(self, model: Callable[[], Path], log_dir: Path) -> None:
        self.model = model
        self.log_dir = log_dir
        self.running: OrderedDict[str, Server] = OrderedDict()

    def get(
        self,
        flags: Mapping[str, Any] | None = None,
        *,
        model: Path | None = None,
        env: Mapping[str, str | None] | None = None,
        name: str = "server",
    ) -> Server:
        """Returns a running server with ``BASE_FLAGS`` and ``flags`` (``None`` removes one).

        Its cache and its counters are as the last test left them: call ``flush_cache`` and
        compare metrics before and after.
        """
        if importlib.util.find_spec("sglang") is None:
            raise RuntimeError(
                "sglang cannot be imported: run `make venv`, or set PYTHONPATH to a tree made "
                "by `python -m fork develop --tree DIR`"
            )
        merged = {**BASE_FLAGS, **(flags or {})}
        target = model or self.model()
        key = json.dumps([str(target), merged, dict(env or {})], sort_keys=True)
        if key in self.running and self.running[key].alive:
            self.running.move_to_end(key)
            return self.running[key]
        while len(self.running) >= MOST_ALIVE:
            self.running.popitem(last=False)[1].stop()
        spec = ServerSpec(
            target, merged, name=name, env=env or {}, ready_timeout_s=900, grace_s=1.0
        )
        server = Server(spec, self.log_dir).start()
        self.running[key] = server
        try:
            server.wait_ready()
        except BaseException:
            del self.running[key]
            raise
        return server

    def stop(self) -> None:
        """Stops all."""
        while self.running:
            self.running.popitem()[1].stop()
