# SPDX-License-Identifier: Apache-2.0
"""The model class is found without importing the other models."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("sglang.srt.platforms.cpu_reference_models")

SCRIPT = """
import sys
from sglang.srt.models.registry import ModelRegistry

assert ModelRegistry.is_arch_supported("LlamaForCausalLM")
cls, arch = ModelRegistry.resolve_model_cls(["LlamaForCausalLM"])
assert (cls.__module__, cls.__name__, arch) == (
    "sglang.srt.models.llama", "LlamaForCausalLM", "LlamaForCausalLM"
)
assert "sglang.srt.models.grok" not in sys.modules
assert "sglang.srt.models.deepseek_v2" not in sys.modules

from sglang.srt.platforms.cpu_reference_models import find_model_class

assert find_model_class("NoSuchForCausalLM") is None
assert find_model_class("x)|(") is None
assert find_model_class("LlamaAttention") is None  # a class there, but not a model
print("passed")
"""


@pytest.mark.slow
def test_only_the_served_model_is_imported():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.strip().endswith("passed"), done.stderr
