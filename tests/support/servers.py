# SPDX-License-Identifier: Apache-2.0
"""Real servers that tests share: the same flags give the same running server."""

from __future__ import annotations

import importlib.util
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness import Preloaded, Server, ServerSpec

# Enough to compare features on and off without starting anything again; each takes some 200 MB
# beside what they share, one with an interpreter of its own 1.5 GB.
MOST_ALIVE = 6

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
        self._preloaded: Preloaded | None = None

    def get(
        self,
        flags: Mapping[str, Any] | None = None,
        *,
        model: Path | None = None,
        env: Mapping[str, str | None] | None = None,
        name: str = "server",
        cold: bool = False,
    ) -> Server:
        """Returns a running server with ``BASE_FLAGS`` and ``flags`` (``None`` removes one).

        Its cache and its counters are as the last test left them: call ``flush_cache`` and
        compare metrics before and after. ``cold`` starts new interpreters as a user does,
        for tests of starting itself; the others share their imports (``harness.Preloaded``).
        """
        if importlib.util.find_spec("sglang") is None:
            raise RuntimeError(
                "sglang cannot be imported: run `make venv`, or set PYTHONPATH to a tree made "
                "by `python -m fork develop --tree DIR`"
            )
        merged = {**BASE_FLAGS, **(flags or {})}
        target = model or self.model()
        key = json.dumps([str(target), merged, dict(env or {}), cold], sort_keys=True)
        for other in [other for other in self.running if other != key]:
            held = self.running[other].spec.flags
            if max(held.get("tp_size", 1), held.get("dp_size", 1)) > 1:
                self.running.pop(other).stop()  # upstream's several ranks spin while idle
        if key in self.running and self.running[key].alive:
            self.running.move_to_end(key)
            return self.running[key]
        while len(self.running) >= MOST_ALIVE:
            self.running.popitem(last=False)[1].stop()
        spec = ServerSpec(
            target, merged, name=name, env=env or {}, ready_timeout_s=900, grace_s=1.0
        )
        server = Server(spec, self.log_dir, *self._warm(spec, cold)).start()
        self.running[key] = server
        try:
            server.wait_ready()
        except BaseException:
            del self.running[key]
            raise
        return server

    def _warm(self, spec: ServerSpec, cold: bool) -> list[Callable]:
        if cold or not Preloaded.can_start(spec):
            return []
        if self._preloaded is None:
            self._preloaded = Preloaded(self.log_dir)
        return [self._preloaded.start]

    def stop(self) -> None:
        """Stops all."""
        while self.running:
            self.running.popitem()[1].stop()
        if self._preloaded is not None:
            self._preloaded.close()
            self._preloaded = None
