# SPDX-License-Identifier: Apache-2.0
"""Errors of the prompts file: each names the entry, the key and what is allowed."""

from __future__ import annotations

import json

import pytest
from sglang.srt.mem_cache.cache_warming.prompt_file import (
    PromptError,
    load_prompt_file,
    parse_prompts,
)

GOOD = {"text": "hello"}


def write(folder, value):
    path = folder / "prompts.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def test_the_example_file_is_well_formed(repository):
    path = repository / "benchmark" / "sglang_optimization" / "example_warmup_prompts.json"
    specs = load_prompt_file(str(path))
    assert len({spec.name for spec in specs}) == len(specs) >= 3
    kinds = {key for s in specs for key in ("text", "messages", "input_ids") if getattr(s, key)}
    assert kinds == {"text", "messages", "input_ids"}


def test_names_are_made_up_where_none_is_given(tmp_path):
    path = write(tmp_path, {"prompts": [GOOD, {**GOOD, "name": "prompt-0"}, GOOD]})
    assert [spec.name for spec in load_prompt_file(path)] == ["prompt-1", "prompt-0", "prompt-2"]
    assert [s.name for s in parse_prompts([GOOD], where="r", taken={"prompt-0"})] == ["prompt-1"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "is not JSON"),
        ("[]", 'an object with the key "prompts", got a list'),
        ({"prompt": []}, "unknown key 'prompt'; the only allowed key"),
        ({}, 'the key "prompts" is missing'),
        ({"prompts": {}}, '"prompts" must be a list, got dict'),
        ({"prompts": [GOOD, 3]}, "prompt 1: must be an object, got int"),
        ({"prompts": [{"txt": "a"}]}, "prompt 0: unknown key 'txt'; allowed keys are add_gen"),
        (
            {"prompts": [{"name": "x", "text": ""}]},
            r"prompt 0 \('x'\): text must be a non-empty string, got \"\"",
        ),
        ({"prompts": [{"messages": []}]}, "prompt 0: messages must be a non-empty list"),
        ({"prompts": [{"messages": [{"content": "a"}]}]}, "objects that have a role"),
        ({"prompts": [{"input_ids": []}]}, "input_ids must be a non-empty list of integers"),
        ({"prompts": [{"input_ids": [1, -2]}]}, r"at least 0, got \[1, -2\]"),
        ({"prompts": [{"input_ids": [True]}]}, "input_ids must be"),
        ({"prompts": [{"name": "x"}]}, "exactly one of text, messages, input_ids; found none"),
        ({"prompts": [{"text": "a", "input_ids": [1]}]}, "found both text and input_ids"),
        ({"prompts": [{"text": "a", "tools": []}]}, "tools needs messages, not text"),
        ({"prompts": [{"text": "a", "pin_seconds": 0}]}, "a number above 0, got 0"),
        ({"prompts": [{"text": "a", "priority": 1.5}]}, "priority must be an integer, got 1.5"),
        ({"prompts": [{"text": "a", "name": "n"}, {"text": "b", "name": "n"}]}, "'n' is taken"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, content, expected):
    with pytest.raises(PromptError, match=expected):
        load_prompt_file(write(tmp_path, content))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(PromptError, match=r"none\.json cannot be read: No such file"):
        load_prompt_file(str(tmp_path / "none.json"))
