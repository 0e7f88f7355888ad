# SPDX-License-Identifier: Apache-2.0
"""The folder's helpers are imported by their plain names; servers that its tests share."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def prompt_file(tmp_path_factory):
    from served import PROMPTS

    path = tmp_path_factory.mktemp("warming") / "prompts.json"
    path.write_text(json.dumps({"prompts": PROMPTS}))
    return str(path)


@pytest.fixture
def warm(serve_with, prompt_file):
    from served import PAGE

    return serve_with(
        {
            "schedule_policy": "lpm",
            "page_size": PAGE,
            "cache_warming_prompts": prompt_file,
            "cache_warming_chunk_size": 64,
            "admin_api_key": "warm-key",
        },
        name="warm",
    )
