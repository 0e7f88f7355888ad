# SPDX-License-Identifier: Apache-2.0
"""Defaults that the platform fills in, and arguments that it refuses at start-up."""

from __future__ import annotations

import pytest

pytest.importorskip("sglang.srt.platforms.cpu_reference_args")


def resolve(model, *arguments):
    """Resolve server arguments as the launcher does and return a view of the result."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.server_args import prepare_server_args

    server_args = prepare_server_args(["--model-path", str(model), *arguments])
    server_args.resolve_once()
    return resolving_view(server_args)


@pytest.fixture(scope="module")
def defaults(tiny_model):
    return resolve(tiny_model)


def test_defaults(defaults):
    assert defaults.device == "cpu"
    assert defaults.attention_backend == "cpu_reference"
    assert defaults.sampling_backend == "pytorch"
    assert defaults.dtype == "float32"
    assert defaults.lora_backend == "torch_native"
    assert defaults.disable_overlap_schedule is False
    assert defaults.sleep_on_idle is True
    assert (defaults.mem_fraction_static, defaults.max_total_tokens) == (0.5, 32768)


def test_the_users_choices_stand(tiny_model):
    view = resolve(
        tiny_model,
        *("--attention-backend", "torch_native"),
        *("--dtype", "bfloat16"),
        *("--mem-fraction-static", "0.3"),
        "--disable-overlap-schedule",
    )
    assert view.attention_backend == "torch_native"
    assert view.dtype == "bfloat16"
    assert (view.mem_fraction_static, view.max_total_tokens) == (0.3, None)
    assert view.disable_overlap_schedule is True


def test_speculation_keeps_the_overlap_loop(tiny_model):
    view = resolve(tiny_model, "--speculative-algorithm", "NGRAM", "--page-size", "16")
    assert view.disable_overlap_schedule is False
    assert view.attention_backend == "cpu_reference"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda"], "--device cuda .*allowed: cpu"),
        (
            ["--disaggregation-transfer-backend", "nixl"],
            "--disaggregation-transfer-backend nixl .*allowed: mooncake_tcp, mooncake, fake",
        ),
        (
            ["--attention-backend", "flashinfer"],
            "--attention-backend flashinfer .*allowed: cpu_reference, torch_native",
        ),
        (
            ["--decode-attention-backend", "triton"],
            "--decode-attention-backend triton .*allowed: cpu_reference, torch_native",
        ),
        (["--sampling-backend", "flashinfer"], "--sampling-backend flashinfer .*allowed: pytorch"),
        (["--dtype", "float16"], "--dtype float16 .*allowed: auto, float, float32, bfloat16"),
        (["--kv-cache-dtype", "fp8_e5m2"], "--kv-cache-dtype fp8_e5m2 .*allowed: auto, bfloat16"),
        (
            ["--speculative-algorithm", "NGRAM", "--attention-backend", "torch_native"],
            "--attention-backend torch_native cannot verify drafts.*allowed: cpu_reference",
        ),
        (
            ["--speculative-draft-attention-backend", "triton"],
            "--speculative-draft-attention-backend triton .*allowed: cpu_reference",
        ),
        (
            ["--speculative-use-rejection-sampling"],
            "--speculative-use-rejection-sampling True .*allowed: False",
        ),
        (["--quantization", "fp8"], "--quantization fp8 .*leave it unset"),
        (["--tensor-parallel-size", "3"], "--tensor-parallel-size 3 .*allowed: 1, 2"),
        (["--pipeline-parallel-size", "2"], "--pipeline-parallel-size 2 .*allowed: 1"),
        (["--hicache-mem-layout", "page_head"], "--hicache-mem-layout page_head .*allowed: layer"),
        (["--lora-backend", "triton"], "--lora-backend triton .*allowed: csgmv, torch_native"),
        (["--enable-lora-overlap-loading"], "--enable-lora-overlap-loading True .*allowed: False"),
        (
            ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "MODEL"],
            "DFLASH speculative decoding is not supported",
        ),
    ],
    ids=lambda value: "_".join(value[:2]).strip("-") if isinstance(value, list) else "",
)
def test_refusals_name_flag_value_and_what_is_allowed(tiny_model, arguments, message):
    arguments = [str(tiny_model) if x == "MODEL" else x for x in arguments]
    with pytest.raises(ValueError, match=message):
        resolve(tiny_model, *arguments)


def test_nothing_speculates_without_the_operators(monkeypatch):
    """They come with a patch topic of their own, which an export may leave out."""
    from sglang.srt.platforms import cpu_reference

    platform = cpu_reference.CpuReferencePlatform()
    assert platform.supports_speculative_algorithm("NGRAM") is True
    assert platform.supports_speculative_algorithm("DFLASH") is False
    monkeypatch.setattr(cpu_reference, "_SPECULATION_OPERATORS", "sglang.srt.platforms.absent")
    assert platform.supports_speculative_algorithm("NGRAM") is False


def test_a_checkpoint_that_asks_for_quantization_is_refused():
    from sglang.srt.layers.quantization import get_quantization_config

    with pytest.raises(ValueError, match="weights quantized by fp8 cannot be served"):
        get_quantization_config("fp8")
