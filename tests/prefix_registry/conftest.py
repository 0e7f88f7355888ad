# SPDX-License-Identifier: Apache-2.0
"""Makes the helper modules beside the tests importable, and loads the page hash once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def page_hash():
    """As at a server's start, so that no test's first estimate waits for it."""
    from sglang.srt.disaggregation.prefix_registry import digests

    digests.load()
