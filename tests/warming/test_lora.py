# SPDX-License-Identifier: Apache-2.0
"""Adapter entries on the real scheduler with real adapters of the tiny model.

In process: upstream's LoRA layers ask for pinned memory, which a CPU server has not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lora_by_hand import TEXT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

RANK = 4
FLAGS = [
    *("--enable-lora", "--lora-backend", "torch_native", "--max-lora-rank", str(RANK)),
    *("--lora-target-modules", "q_proj", "v_proj"),
    *("--max-total-tokens", "4096", "--schedule-policy", "lpm"),
]
LISTED = [
    {"name": "plain", "input_ids": TEXT},
    {"name": "styled", "input_ids": TEXT, "lora": "style", "pin_seconds": 600},
]


def make_adapter(folder: Path, seed: int) -> Path:
    """A random adapter, in PEFT's format, large enough to change answers."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(2):
        for module, width in (("q_proj", 64), ("v_proj", 32)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{name}.lora_A.weight"] = torch.randn(RANK, 64, generator=generator) / 8
            weights[f"{name}.lora_B.weight"] = torch.randn(width, RANK, generator=generator)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def by_hand(tmp_path, tiny_model):
    adapters = [str(make_adapter(tmp_path / f"adapter-{n}", n)) for n in range(2)]
    (tmp_path / "prompts.json").write_text(json.dumps({"prompts": LISTED}))
    script = Path(__file__).with_name("lora_by_hand.py")

    def run(*flags):
        result = tmp_path / "result.json"
        done = subprocess.run(
            [sys.executable, str(script), str(tiny_model), str(result), *adapters, *FLAGS, *flags],
            timeout=500,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(result.read_text())

    run.prompts = str(tmp_path / "prompts.json")
    return run


def test_an_adapters_prompt_follows_the_adapter(by_hand):
    without = by_hand()
    warmed = by_hand("--cache-warming-prompts", by_hand.prompts)
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
