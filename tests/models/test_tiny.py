# SPDX-License-Identifier: Apache-2.0
"""The tiny model: its tokenizer, its weights, and what transformers makes of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from models.tiny import SPECIAL_TOKENS, TinyConfig, byte_tokenizer, ensure, model_weights

TOKENIZER = byte_tokenizer()


@given(st.text())
def test_a_token_is_a_byte(text):
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert ids == list(text.encode())
    assert TOKENIZER.decode(ids) == text


def test_special_tokens_follow_the_bytes():
    ids = [TOKENIZER.token_to_id(token) for token in SPECIAL_TOKENS]
    assert ids == list(range(256, 256 + len(SPECIAL_TOKENS)))


def test_the_seed_determines_the_weights():
    first, again = model_weights(TinyConfig(seed=1)), model_weights(TinyConfig(seed=1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = model_weights(TinyConfig(seed=2))
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


@pytest.mark.parametrize("variant", [{}, {"layers": 1, "vocab": 512, "tie_embeddings": True}])
def test_transformers_loads_it_whole_and_it_depends_on_its_input(tmp_path, variant):
    folder = ensure(TinyConfig(**variant), tmp_path / "tiny")
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    logits = [
        model(**tokenizer(text, return_tensors="pt")).logits[0, -1] for text in ("ab", "bb", "cab")
    ]
    assert len({tuple(one.topk(3).indices.tolist()) for one in logits}) == 3


def test_greedy_output_is_printable_and_does_not_end_early(tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    prompt = tokenizer("Once upon a time", return_tensors="pt")
    ids = model.generate(**prompt, max_new_tokens=40, do_sample=False)[0, 16:].tolist()
    assert len(ids) == 40 and all(32 <= token < 127 for token in ids)
    assert len(set(ids)) > 5, "not one token over and over"


def test_the_chat_template_marks_roles(tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"vocab": 260}, "vocab must be at least 261"),
        ({"heads": 3}, "heads must divide hidden"),
        ({"kv_heads": 3}, "kv_heads must divide heads"),
        ({"dtype": "int8"}, "dtype must be one of float32, bfloat16"),
    ],
)
def test_shapes_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        TinyConfig(**wrong)
