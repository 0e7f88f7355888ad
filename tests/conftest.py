# SPDX-License-Identifier: Apache-2.0
"""Fixtures for every test: small models and servers that tests share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from harness import Server
from support.servers import ServerPool

ROOT = Path(__file__).resolve().parents[1]

# The models are so small that threads only wait for each other, and workers share the cores.
# Servers inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# In CI a change must not fail for an example that some other change could have drawn; at the
# desk every run draws new ones.
settings.register_profile("ci", derandomize=True, database=None)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session")
def repository() -> Path:
    """Returns the root of this checkout."""
    return ROOT


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """Returns a two-layer random Llama model in float32, cached under build/models."""
    from models import tiny  # imports torch, which most tests do without

    return tiny.ensure()


@pytest.fixture(scope="session")
def server_pool(request: pytest.FixtureRequest) -> Iterator[ServerPool]:
    """Returns what starts servers on demand; all are stopped at the end of the session."""
    pool = ServerPool(lambda: request.getfixturevalue("tiny_model"), ROOT / "build" / "logs")
    try:
        yield pool
    finally:
        pool.stop()


@pytest.fixture(scope="session")
def serve_with(server_pool: ServerPool) -> Callable[..., Server]:
    """Returns ``serve_with({"flag": value, ...}, model=..., env=...)``, see ``ServerPool.get``.

    Mark tests that use it ``e2e``; put those with equal flags next to each other.
    """
    return server_pool.get
