# SPDX-License-Identifier: Apache-2.0
"""Random LoRA adapters of the tiny model, and what they answer by ``transformers``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

RANK = 4
ALPHA = 8
LAYERS = 2
# Output and input width of the modules that are adapted.
MODULES = {"q_proj": (64, 64), "v_proj": (32, 64)}
SERVED = {"enable_lora": True, "max_lora_rank": RANK, "lora_target_modules": list(MODULES)}


def make_adapter(folder: Path, seed: int) -> Path:
    """A random adapter, in PEFT's format, large enough to change answers."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(LAYERS):
        for module, (rows, columns) in MODULES.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{name}.lora_A.weight"] = torch.randn(RANK, columns, generator=generator) / 8
            weights[f"{name}.lora_B.weight"] = torch.randn(rows, RANK, generator=generator)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": RANK,
        "lora_alpha": ALPHA,
        "bias": "none",
        "target_modules": list(MODULES),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def merged_answers(
    model: Path, adapter: Path | None, prompts: Sequence[Sequence[int]], tokens: int
) -> list[list[int]]:
    """Greedy answers of the model with the adapter added to its weights, by ``transformers``."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    merged = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if adapter is not None:
        weights = load_file(adapter / "adapter_model.safetensors")
        for layer in range(LAYERS):
            for module in MODULES:
                name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
                a, b = (weights[f"{name}.lora_{x}.weight"] for x in "AB")
                target = getattr(merged.model.layers[layer].self_attn, module).weight
                target.data += ALPHA / RANK * b @ a
    answers = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)])
        with torch.no_grad():
            for _ in range(tokens):
                best = merged(ids).logits[:, -1].argmax(-1)
                ids = torch.cat([ids, best[:, None]], 1)
        answers.append(ids[0, len(prompt) :].tolist())
    return answers
