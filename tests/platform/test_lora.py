# SPDX-License-Identifier: Apache-2.0
"""LoRA without pinned memory; served answers are in tests/warming/test_lora.py."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
cpu_reference_lora = pytest.importorskip("sglang.srt.platforms.cpu_reference_lora")


class Layer:
    """Pins as upstream does."""

    def build(self, rows, *, fill):
        """Doc."""
        self.offsets = torch.tensor([0, rows], dtype=torch.int32, pin_memory=True)
        self.more = torch.zeros((rows,), pin_memory=True).add_(fill).pin_memory()
        return self.offsets.tolist()


def test_a_method_that_pins_runs_without_a_driver():
    unpinned = cpu_reference_lora.without_pinning(Layer, "build")
    layer = unpinned()
    assert layer.build(3, fill=2) == [0, 3]
    assert layer.more.tolist() == [2, 2, 2] and not layer.more.is_pinned()
    assert layer.offsets.dtype is torch.int32
    assert isinstance(layer, Layer) and unpinned.__name__ == "Layer"
    assert unpinned.build.__doc__ == "Doc."


def test_nothing_else_is_changed():
    """Outside of such a method pinning fails as before, or works where there is a driver."""
    if torch.cuda.is_available():
        pytest.skip("pinning works here")
    with pytest.raises(RuntimeError):
        torch.zeros(2, pin_memory=True)
    cpu_reference_lora.without_pinning(Layer, "build")().build(1, fill=0)
    with pytest.raises(RuntimeError):
        torch.zeros(2).pin_memory()
