# SPDX-License-Identifier: Apache-2.0
"""An EAGLE head with random weights for a small Llama model.

It drafts badly. Equality of the output does not depend on that, and a bad draft
exercises rejection more than a good one.
"""

from __future__ import annotations

import json
from pathlib import Path


def make_eagle_head(target: Path, folder: Path) -> Path:
    """Write a one-layer head for ``target`` into ``folder`` and return it."""
    import torch
    from safetensors.torch import load_file, save_file

    config = json.loads((target / "config.json").read_text())
    hidden, middle = config["hidden_size"], config["intermediate_size"]
    head = hidden // config["num_attention_heads"]
    keys = config["num_key_value_heads"] * head
    gen = torch.Generator().manual_seed(7)

    def random(*shape):
        return torch.randn(*shape, generator=gen) / shape[-1] ** 0.5

    weights = {
        "fc.weight": random(hidden, 2 * hidden),
        "fc.bias": torch.zeros(hidden),
        "layers.0.self_attn.q_proj.weight": random(hidden, hidden),
        "layers.0.self_attn.k_proj.weight": random(keys, hidden),
        "layers.0.self_attn.v_proj.weight": random(keys, hidden),
        "layers.0.self_attn.o_proj.weight": random(hidden, hidden),
        "layers.0.mlp.gate_proj.weight": random(middle, hidden),
        "layers.0.mlp.up_proj.weight": random(middle, hidden),
        "layers.0.mlp.down_proj.weight": random(hidden, middle),
        "layers.0.post_attention_layernorm.weight": torch.ones(hidden),
        "embed_tokens.weight": load_file(target / "model.safetensors")[
            "model.embed_tokens.weight"
        ].clone(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.update(architectures=["LlamaForCausalLMEagle"], num_hidden_layers=1)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((target / name).read_bytes())
    return folder
