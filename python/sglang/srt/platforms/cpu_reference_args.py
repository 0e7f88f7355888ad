# SPDX-License-Identifier: Apache-2.0
"""Server arguments on the reference CPU platform: defaults and refusals.

Only what the user left open is filled in. What cannot work is refused at
start-up, where the message can still name the flag, rather than in the middle
of loading or of the first batch.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple, Optional

logger = logging.getLogger(__name__)

# The device is the host here: what upstream takes of a GPU by default would
# starve the other processes of the machine. So: weights and KV pool in at most
# half of the memory that is free at start-up, and no more KV slots than a CPU
# can fill (every slot is written once at start-up, which takes time as well).
_MEM_FRACTION_STATIC = 0.5
_MAX_TOTAL_TOKENS = 32768

# Upstream's "auto" halves float32 models to float16. A CPU without instructions
# for it computes a 16-bit product more slowly than a float32 one, and a reference
# should not round more than it must.
_DTYPE = "float32"


# Upstream's default runs Triton kernels.
_UPSTREAM_LORA_BACKEND = "csgmv"
_LORA_BACKEND = "torch_native"

# Layouts of HiCache's host pool whose per-layer view can be indexed: page_head
# splits a token's heads over a page, the others keep a token together.
HICACHE_LAYOUTS = ("layer_first", "page_first", "page_first_direct")


class _Choice(NamedTuple):
    """Values of one argument that work here; None stands for "left open"."""

    flag: str
    field: str
    allowed: tuple


_CHOICES: tuple[_Choice, ...] = (
    _Choice("--device", "device", (None, "cpu")),
    _Choice(
        "--attention-backend",
        "attention_backend",
        (None, "cpu_reference", "torch_native"),
    ),
    _Choice(
        "--prefill-attention-backend",
        "prefill_attention_backend",
        (None, "cpu_reference", "torch_native"),
    ),
    _Choice(
        "--decode-attention-backend",
        "decode_attention_backend",
        (None, "cpu_reference", "torch_native"),
    ),
    _Choice(
        "--speculative-draft-attention-backend",
        "speculative_draft_attention_backend",
        (None, "cpu_reference"),
    ),
    # Its chain kernel exists for Triton only.
    _Choice(
        "--speculative-use-rejection-sampling",
        "speculative_use_rejection_sampling",
        (None, False),
    ),
    _Choice("--sampling-backend", "sampling_backend", (None, "pytorch")),
    _Choice("--dtype", "dtype", ("auto", "float", "float32", "bfloat16")),
    _Choice("--kv-cache-dtype", "kv_cache_dtype", ("auto", "bfloat16", "bf16")),
    _Choice("--quantization", "quantization", (None,)),
    # Its RDMA form needs no GPU either; the others register device memory.
    _Choice(
        "--disaggregation-transfer-backend",
        "disaggregation_transfer_backend",
        ("mooncake_tcp", "mooncake", "fake"),
    ),
    _Choice("--hicache-mem-layout", "hicache_mem_layout", HICACHE_LAYOUTS),
    _Choice("--lora-backend", "lora_backend", (_UPSTREAM_LORA_BACKEND, _LORA_BACKEND)),
    # It loads adapters on a stream of its own, from pinned memory.
    _Choice(
        "--enable-lora-overlap-loading", "enable_lora_overlap_loading", (None, False)
    ),
    # Over gloo; SGLANG_CPU_OMP_THREADS_BIND must name the cores of each rank.
    _Choice("--tensor-parallel-size", "tp_size", (1, 2)),
    _Choice("--pipeline-parallel-size", "pp_size", (1,)),
)


def _asked(server_args: Any, field: str) -> Any:
    """The value the user gave, before any resolution step changed it."""
    raw: Optional[dict] = getattr(server_args, "_raw_input", None)
    if raw is not None and field in raw:
        return raw[field]
    return getattr(server_args, field)


def check(server_args: Any) -> None:
    """Refuse what this platform cannot serve.

    Raises:
        ValueError: names the flag, its value and what is allowed.
    """
    for flag, field, allowed in _CHOICES:
        value = _asked(server_args, field)
        if value not in allowed:
            names = [str(x) for x in allowed if x is not None]
            hint = f"allowed: {', '.join(names)}" if names else "leave it unset"
            raise ValueError(
                f"{flag} {value} cannot be served on the reference CPU platform "
                f"(no accelerator was found); {hint}."
            )
    if _asked(server_args, "speculative_algorithm"):
        for flag, field, _ in _CHOICES:
            if _asked(server_args, field) == "torch_native" and "attention" in field:
                raise ValueError(
                    f"{flag} torch_native cannot verify drafts, so not with "
                    "--speculative-algorithm; allowed: cpu_reference."
                )


def apply_defaults(server_args: Any, *, attention_backend: str) -> None:
    """Fill in what the user left open.

    Args:
        server_args: upstream's recorder; assignments become declarations.
        attention_backend: name of this platform's attention backend.
    """
    if _asked(server_args, "attention_backend") is None:
        # Upstream's own default for device "cpu" is intel_amx, declared before.
        server_args.attention_backend = attention_backend
    if _asked(server_args, "dtype") == "auto":
        server_args.dtype = _DTYPE
        logger.info("--dtype auto is %s on the reference CPU platform.", _DTYPE)
    if _asked(server_args, "lora_backend") == _UPSTREAM_LORA_BACKEND:
        server_args.lora_backend = _LORA_BACKEND
    # An idle scheduler polls without pause otherwise and takes a core, which is
    # where another server's or the client's work would run.
    server_args.sleep_on_idle = True
    if server_args.mem_fraction_static is None:
        server_args.mem_fraction_static = _MEM_FRACTION_STATIC
        if server_args.max_total_tokens is None:
            server_args.max_total_tokens = _MAX_TOTAL_TOKENS
