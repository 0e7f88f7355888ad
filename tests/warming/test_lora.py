# SPDX-License-Identifier: Apache-2.0
"""Adapter entries: on a real server, and on a scheduler whose adapters come and go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lora_by_hand import ASK, TEXT
from served import wait_warm

from harness import ClosedLoop, Request, drive, require_success
from support.copies import Script, run_scripts
from support.lora import RANK, SERVED, make_adapter, merged_answers

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TOKENS = 10
FLAGS = [
    *("--enable-lora", "--max-lora-rank", str(RANK), "--lora-target-modules", "q_proj", "v_proj"),
    *("--max-total-tokens", "4096", "--schedule-policy", "lpm"),
]
LISTED = [
    {"name": "plain", "input_ids": TEXT},
    {"name": "styled", "input_ids": TEXT, "lora": "style", "pin_seconds": 600},
]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [make_adapter(folder / f"adapter-{n}", n) for n in range(2)]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("listed") / "prompts.json"
    path.write_text(json.dumps({"prompts": LISTED}))
    return str(path)


def test_a_server_answers_and_warms_with_an_adapter(serve_with, tiny_model, adapters, prompts):
    """Answers are those of the merged weights, alone and in a batch of three models."""
    styled = {"lora_path": "style"}
    named = {None: None, "style": adapters[0], "other": adapters[1]}
    asked = [ASK, TEXT[:70], [*TEXT[:40], 65]]
    expected = {
        name: merged_answers(tiny_model, adapter, asked, TOKENS) for name, adapter in named.items()
    }
    assert len({tuple(answers[0]) for answers in expected.values()}) == len(named)
    server = serve_with(
        {**SERVED, "cache_warming_prompts": prompts, "chunked_prefill_size": 64}, name="lora"
    )
    for name in ("style", "other"):
        body = {"lora_name": name, "lora_path": str(named[name])}
        assert server.post("/load_lora_adapter", body)["success"]
    warmed = wait_warm(server)["styled"]
    assert warmed["pinned"] and warmed["cached_tokens"] == len(TEXT)
    (first,) = drive(server.url, [Request(ASK, TOKENS, extra=styled)], ClosedLoop(1))
    assert first.error is None, first.error
    assert first.cached_tokens == len(TEXT)
    assert first.output_ids == expected["style"][0]
    requests, wanted = [], []
    for place, prompt in enumerate(asked):
        for name in named:
            extra = {"lora_path": name} if name else {}
            requests.append(Request(prompt, TOKENS, sampling={"ignore_eos": True}, extra=extra))
            wanted.append(expected[name][place])
    results = drive(server.url, requests, ClosedLoop(len(requests)))
    require_success(results)
    assert [result.output_ids for result in results] == wanted
    assert server.post("/unload_lora_adapter", {"lora_name": "style"})["success"]
    (rank,) = server.get("/cache_warming")["ranks"]
    states = {prompt["name"]: prompt["state"] for prompt in rank["prompts"]}
    assert states == {"plain": "warm", "styled": "no_adapter"}


def test_an_adapters_prompt_follows_the_adapter(tmp_path, tiny_model, adapters, prompts):
    script = Path(__file__).with_name("lora_by_hand.py")
    flags = {"without": [], "warmed": ["--cache-warming-prompts", prompts]}
    paths = {name: tmp_path / f"{name}.json" for name in flags}
    run_scripts(
        Script(script, [tiny_model, paths[name], *adapters, *FLAGS, *more])
        for name, more in flags.items()
    )
    without, warmed = (json.loads(path.read_text()) for path in paths.values())
    assert without["loaded"] == warmed["loaded"] == [True, True, True]
    assert warmed["output"] == without["output"]
    answers = [tuple(warmed["output"][name]) for name in ("base", "with one", "with two")]
    assert len(set(answers)) == 3, "the adapters change the answer"
    # Nothing is shared between the base model and the adapters, or between two loads.
    assert without["cached"] == {"base": 0, "with one": 0, "with two": 0}
    assert warmed["cached"] == dict.fromkeys(("base", "with one", "with two"), len(TEXT))
    seen = {name: {k: tuple(v) for k, v in entry.items()} for name, entry in warmed["seen"].items()}
    full = len(TEXT)
    assert seen["start"]["styled"][0] == seen["unloaded"]["styled"][0] == "no_adapter"
    assert not seen["unloaded"]["styled"][2], "its lock went with the adapter"
    assert seen["loaded"]["styled"] == seen["loaded again"]["styled"] == ("warm", full, True)
    assert all(states["plain"][:2] == ("warm", full) for states in seen.values())
