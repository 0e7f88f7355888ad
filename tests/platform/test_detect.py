# SPDX-License-Identifier: Apache-2.0
"""When the reference CPU platform activates, and when it stays out of the way."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

detect = pytest.importorskip("sglang.srt.platforms.cpu_reference_detect")

SELECTORS = ("SGLANG_PLATFORM", "SGLANG_USE_MLX", "SGLANG_USE_CPU_ENGINE")


@pytest.fixture(autouse=True)
def no_selection(monkeypatch):
    for name in SELECTORS:
        monkeypatch.delenv(name, raising=False)


def test_empty_machine(tmp_path):
    assert detect.reason_to_stay_out(root=str(tmp_path)) is None


@pytest.mark.parametrize(
    "node",
    ["nvidia0", "nvidiactl", "kfd", "davinci0", "accel/accel0", "hl0"],
)
def test_device_nodes_keep_it_out(tmp_path, node):
    path = tmp_path / "dev" / node
    path.parent.mkdir(parents=True)
    path.touch()
    reason = detect.reason_to_stay_out(root=str(tmp_path))
    assert reason is not None and node in reason


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SGLANG_PLATFORM", "vendor"),
        ("SGLANG_USE_MLX", "1"),
        ("SGLANG_USE_CPU_ENGINE", "1"),
    ],
)
def test_selections_keep_it_out(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert name in detect.reason_to_stay_out(root=str(tmp_path))


def test_switched_off_selectors_do_not_count(tmp_path, monkeypatch):
    for name in SELECTORS[1:]:
        monkeypatch.setenv(name, "0")
    assert detect.reason_to_stay_out(root=str(tmp_path)) is None


def test_torch_accelerator_keeps_it_out(tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(
        torch.accelerator,
        "current_accelerator",
        lambda check_available=False: torch.device("xpu"),
    )
    assert "xpu" in detect.reason_to_stay_out(root=str(tmp_path))


def resolve(code: str, **env: str) -> str:
    """Resolve the platform in a fresh process after running ``code``."""
    script = textwrap.dedent(code) + textwrap.dedent(
        """
        from sglang.srt.platforms import current_platform
        print("RESOLVED", type(current_platform).__name__, current_platform.device_name)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [x for x in done.stdout.splitlines() if x.startswith("RESOLVED")]
    return lines[0].removeprefix("RESOLVED ") if lines else done.stderr


# Upstream's own decision, by making its probes answer as they would there.
FAKE_GPU = """
import torch, torch.version
torch.cuda.is_available = lambda: True
torch.cuda.get_device_name = lambda *a: "NVIDIA H200"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "env", "expected"),
    [
        ("", {}, "CpuReferencePlatform cpu-reference"),
        (FAKE_GPU, {}, "CudaSRTPlatform cuda"),
        ("", {"SGLANG_USE_CPU_ENGINE": "1"}, "CpuSRTPlatform cpu"),
        ("", {"SGLANG_PLATFORM": "vendor"}, "SGLANG_PLATFORM='vendor' not found"),
    ],
    ids=["nothing", "gpu", "cpu-engine", "named-platform"],
)
def test_upstream_resolution(code, env, expected):
    assert expected in resolve(code, **env)
