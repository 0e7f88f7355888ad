# SPDX-License-Identifier: Apache-2.0
"""EAGLE and EAGLE3 heads with random weights for a small Llama model.

They draft badly. Equality of the output does not depend on that, and a bad draft
exercises rejection more than a good one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def make_eagle_head(target: Path, folder: Path) -> Path:
    """Write a one-layer head for ``target`` into ``folder`` and return it."""
    import torch

    config, random = _target(target)
    hidden = config["hidden_size"]
    weights = {
        "fc.weight": random(hidden, 2 * hidden),
        "fc.bias": torch.zeros(hidden),
        **_layer(config, random, "layers.0", inputs=hidden),
        "embed_tokens.weight": _embedding(target),
    }
    config.update(architectures=["LlamaForCausalLMEagle"], num_hidden_layers=1)
    return _write(target, folder, config, weights)


def make_eagle3_head(target: Path, folder: Path) -> Path:
    """The same as EAGLE3 has it: it reads two of the target's layers, and drafts from a
    vocabulary of its own: the printable bytes, which are all that the tiny model writes."""
    import torch

    config, random = _target(target)
    hidden, vocabulary = config["hidden_size"], 96
    weights = {
        "fc.weight": random(hidden, 2 * hidden),
        **_layer(config, random, "midlayer", inputs=2 * hidden),
        "midlayer.hidden_norm.weight": torch.ones(hidden),
        "midlayer.input_layernorm.weight": torch.ones(hidden),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": random(vocabulary, hidden),
        # Target id less draft id.
        "d2t": torch.full((vocabulary,), ord(" "), dtype=torch.int64),
    }
    config.update(
        architectures=["LlamaForCausalLMEagle3"],
        num_hidden_layers=1,
        draft_vocab_size=vocabulary,
        # What goes into the first layer and what comes out of it.
        eagle_config={
            "eagle_aux_hidden_state_layer_ids": [-1, 0],
            "use_aux_hidden_state": True,
        },
    )
    return _write(target, folder, config, weights)


def _target(folder: Path) -> tuple[dict[str, Any], Callable[..., Any]]:
    """The target's configuration, and what draws a weight of a given shape."""
    import torch

    gen = torch.Generator().manual_seed(7)

    def random(*shape):
        return torch.randn(*shape, generator=gen) / shape[-1] ** 0.5

    return json.loads((folder / "config.json").read_text()), random


def _layer(config: dict, random: Callable, prefix: str, *, inputs: int) -> dict[str, Any]:
    """Weights of a decoder layer whose attention reads ``inputs`` features."""
    import torch

    hidden, middle = config["hidden_size"], config["intermediate_size"]
    keys = config["num_key_value_heads"] * (hidden // config["num_attention_heads"])
    return {
        f"{prefix}.self_attn.q_proj.weight": random(hidden, inputs),
        f"{prefix}.self_attn.k_proj.weight": random(keys, inputs),
        f"{prefix}.self_attn.v_proj.weight": random(keys, inputs),
        f"{prefix}.self_attn.o_proj.weight": random(hidden, hidden),
        f"{prefix}.mlp.gate_proj.weight": random(middle, hidden),
        f"{prefix}.mlp.up_proj.weight": random(middle, hidden),
        f"{prefix}.mlp.down_proj.weight": random(hidden, middle),
        f"{prefix}.post_attention_layernorm.weight": torch.ones(hidden),
    }


def _embedding(target: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(target / "model.safetensors")["model.embed_tokens.weight"].clone()


def _write(target: Path, folder: Path, config: dict, weights: dict[str, Any]) -> Path:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((target / name).read_bytes())
    return folder
