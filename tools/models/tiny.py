# SPDX-License-Identifier: Apache-2.0
"""Makes a small Llama model with random weights over a byte-level tokenizer, in seconds.

The weights come from a seeded generator, so the same arguments give the same folder. Scaling
keeps the logits apart: greedy decoding depends on the context and rarely meets a near tie,
which is what tests that compare two servers need. It knows nothing; it only computes.
Greedy output is printable ASCII and never ends by itself (not so with tied embeddings).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from . import folder as model_folder

RECIPE = "tiny-llama/2"
PRINTABLE = range(32, 127)
SPECIAL_TOKENS = ("<|pad|>", "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class TinyConfig:
    """Shape of the model. ``vocab`` counts 256 bytes, the special tokens and unused ids."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 128
    vocab: int = 320
    context: int = 8192
    dtype: str = "float32"
    seed: int = 0
    tie_embeddings: bool = False

    def __post_init__(self) -> None:
        smallest_vocab = 256 + len(SPECIAL_TOKENS)
        checks = {
            f"vocab must be at least {smallest_vocab}": self.vocab >= smallest_vocab,
            "layers must be at least 1": self.layers >= 1,
            "heads must divide hidden into an even head size": self.hidden % (2 * self.heads) == 0,
            "kv_heads must divide heads": self.kv_heads > 0 and self.heads % self.kv_heads == 0,
            f"dtype must be one of {', '.join(DTYPES)}": self.dtype in DTYPES,
            "context must be at least 16": self.context >= 16,
        }
        for message, holds in checks.items():
            if not holds:
                raise ValueError(f"{message}; got {self}")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    @property
    def name(self) -> str:
        """Folder name; the plain default is ``tiny``, a variant names what differs."""
        default = asdict(TinyConfig())
        parts = [f"{k}-{v}".lower() for k, v in asdict(self).items() if v != default[k]]
        return "-".join(["tiny", *parts]).replace("_", "-")


def layer_weights(config: TinyConfig, prefix: str, generator: torch.Generator) -> dict[str, Any]:
    """Returns the weights of one decoder layer, named ``prefix`` + upstream's suffix.

    A separate function because a draft head is one such layer too.
    """
    hidden, inner = config.hidden, config.intermediate
    q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes = {
        "self_attn.q_proj": (q_width, hidden),
        "self_attn.k_proj": (kv_width, hidden),
        "self_attn.v_proj": (kv_width, hidden),
        "self_attn.o_proj": (hidden, q_width),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    weights = {
        f"{prefix}{name}.weight": random_matrix(shape, generator, gain=2.0)
        for name, shape in shapes.items()
    }
    for norm in ("input_layernorm", "post_attention_layernorm"):
        weights[f"{prefix}{norm}.weight"] = torch.ones(hidden)
    return weights


def random_matrix(shape: tuple[int, int], generator: torch.Generator, gain: float) -> torch.Tensor:
    """Returns a Gaussian matrix whose output has about ``gain`` times its input's variance."""
    return torch.randn(shape, generator=generator) * (gain / shape[1]) ** 0.5


def model_weights(config: TinyConfig) -> dict[str, torch.Tensor]:
    """Returns all weights of the model under the names of ``LlamaForCausalLM``."""
    generator = torch.Generator().manual_seed(config.seed)
    weights = {
        "model.embed_tokens.weight": torch.randn(config.vocab, config.hidden, generator=generator)
    }
    for layer in range(config.layers):
        weights |= layer_weights(config, f"model.layers.{layer}.", generator)
    weights["model.norm.weight"] = torch.ones(config.hidden)
    if not config.tie_embeddings:
        head = random_matrix((config.vocab, config.hidden), generator, gain=16.0)
        # A zero row never has the largest logit, so greedy output is printable text that
        # streams byte by byte and does not end before it must.
        head[[n for n in range(config.vocab) if n not in PRINTABLE]] = 0
        weights["lm_head.weight"] = head
    dtype = DTYPES[config.dtype]
    return {name: weight.to(dtype).contiguous() for name, weight in weights.items()}


def model_config(config: TinyConfig) -> dict[str, Any]:
    """Returns the content of ``config.json``."""
    first_special = 256
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": config.dtype,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": config.tie_embeddings,
        "pad_token_id": first_special,
        "bos_token_id": first_special + 1,
        "eos_token_id": first_special + 2,
    }


def byte_tokenizer() -> Tokenizer:
    """Returns a tokenizer with one token for each byte; id = byte value, specials from 256."""
    alphabet = {_byte_symbol(byte): byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


def _byte_symbol(byte: int) -> str:
    """Returns the printable character that stands for ``byte`` in byte-level BPE (GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in printable:
        return chr(byte)
    return chr(256 + [b for b in range(256) if b not in printable].index(byte))


def write_tokenizer(target: Path, context: int) -> None:
    """Writes the tokenizer, its settings and the chat template into ``target``."""
    byte_tokenizer().save(str(target / "tokenizer.json"))
    pad, bos, eos, *_ = SPECIAL_TOKENS
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": pad,
        "bos_token": bos,
        "eos_token": eos,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (target / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def make(target: Path, config: TinyConfig) -> None:
    """Fills the empty folder ``target`` with a servable model."""
    save_file(model_weights(config), target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(model_config(config), indent=2))
    generation = {"bos_token_id": 257, "eos_token_id": 258, "pad_token_id": 256}
    (target / "generation_config.json").write_text(json.dumps(generation, indent=2))
    write_tokenizer(target, config.context)


def ensure(
    config: TinyConfig | None = None,
    output: Path | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Path:
    """Returns the folder of the model that ``config`` describes, made if need be."""
    config = config or TinyConfig()
    recipe = {"recipe": RECIPE, **asdict(config)}
    target = output or model_folder.cache_root() / config.name
    return model_folder.ensure(target, recipe, lambda folder: make(folder, config), report)


def main(
    output: Annotated[Path | None, typer.Option(help="Folder (default build/models/NAME).")] = None,
    layers: int = TinyConfig.layers,
    hidden: int = TinyConfig.hidden,
    heads: int = TinyConfig.heads,
    kv_heads: int = TinyConfig.kv_heads,
    intermediate: int = TinyConfig.intermediate,
    vocab: int = TinyConfig.vocab,
    context: int = TinyConfig.context,
    dtype: str = TinyConfig.dtype,
    seed: int = TinyConfig.seed,
    tie_embeddings: bool = TinyConfig.tie_embeddings,
) -> None:
    """Makes a tiny random Llama model and prints its folder."""
    try:
        config = TinyConfig(
            layers,
            hidden,
            heads,
            kv_heads,
            intermediate,
            vocab,
            context,
            dtype,
            seed,
            tie_embeddings,
        )
        folder = ensure(config, output, lambda line: typer.echo(line, err=True))
    except (ValueError, model_folder.ModelFolderError) as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(folder)


if __name__ == "__main__":
    typer.run(main)
