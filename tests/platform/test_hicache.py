# SPDX-License-Identifier: Apache-2.0
"""HiCache on the reference CPU platform: what left the device pool comes back unchanged."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from .conftest import make_prompts

PYTHON_CORE = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}

# A write-through cache with defaults, and a write-back one with everything else changed.
HICACHE = {"enable_hierarchical_cache": True, "hicache_ratio": 4, "max_total_tokens": 512}
WRITE_THROUGH = {**HICACHE, "hicache_write_policy": "write_through"}
WRITE_BACK = {
    **HICACHE,
    "hicache_write_policy": "write_back",
    "hicache_io_backend": "direct",
    "hicache_mem_layout": "page_first_direct",
    "page_size": 4,
}


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("flags", "env"),
    [(WRITE_THROUGH, {}), (WRITE_BACK, PYTHON_CORE)],
    ids=["write-through", "write-back"],
)
def test_prefixes_come_back_from_the_host(serve_with, plain_output, flags, env):
    prompts = make_prompts(6, 150, seed=14)
    alone = [plain_output(p, 12) for p in prompts]
    longer = [p + output + [65, 66] for p, output in zip(prompts, alone, strict=True)]
    continued = [plain_output(p, 6) for p in longer]
    server = serve_with(flags, env=env, name="hicache")
    server.flush_cache()
    # 900 prompt tokens through 512 slots: by the second round every prefix has left them.
    for _ in range(2):
        from_host = 0
        for prompt, output in zip(prompts, alone, strict=True):
            answer = server.generate(prompt, 12, ignore_eos=True)
            assert answer["output_ids"] == output
            details = answer["meta_info"].get("cached_tokens_details") or {}
            from_host += details.get("host", 0)
    assert from_host >= 6 * 140
    for prompt, output in zip(longer, continued, strict=True):
        answer = server.generate(prompt, 6, ignore_eos=True)
        assert answer["meta_info"]["cached_tokens_details"]["host"] >= 150
        assert answer["output_ids"] == output


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct"])
def test_rows_survive_the_round_trip_in_every_layout(layout):
    torch = pytest.importorskip("torch")
    hicache = pytest.importorskip("sglang.srt.platforms.cpu_reference_hicache")
    layers, pages, page, heads, dim = 3, 5, 4, 2, 6
    gen = torch.Generator().manual_seed(0)
    device = [torch.randn(2, 40, heads, dim, generator=gen) for _ in range(layers)]
    shape = {
        "layer_first": (2, layers, pages * page, heads, dim),
        "page_first": (2, pages * page, layers, heads, dim),
        "page_first_direct": (2, pages, layers, page, heads, dim),
    }[layout]
    host = torch.zeros(shape)
    per_layer = host if layout == "layer_first" else host.transpose(1, 2)
    pool = SimpleNamespace(
        layout=layout,
        page_size=page,
        target_layer_num=layers,
        device_k_buffers=[x[0] for x in device],
        device_v_buffers=[x[1] for x in device],
        k_data_refs=list(per_layer[0]),
        v_data_refs=list(per_layer[1]),
    )
    before = [x.clone() for x in device]
    host_slots = torch.tensor([8, 9, 10, 11, 0, 1, 2, 3])
    device_slots = torch.tensor([33, 7, 12, 30, 1, 2, 3, 4])
    hicache.backup_all_layers(pool, host_slots, device_slots)
    elsewhere = torch.tensor([20, 21, 22, 23, 24, 25, 26, 27])
    for layer in range(layers + 1):  # upstream asks for more layers than a pool may have
        hicache.load_layer(pool, host_slots, elsewhere, layer, is_draft=False)
    for old, new in zip(before, device, strict=True):
        assert torch.equal(new[:, elsewhere], old[:, device_slots])
        untouched = [i for i in range(40) if i not in elsewhere.tolist()]
        assert torch.equal(new[:, untouched], old[:, untouched])


def test_an_unknown_layout_is_refused():
    torch = pytest.importorskip("torch")
    hicache = pytest.importorskip("sglang.srt.platforms.cpu_reference_hicache")
    pool = SimpleNamespace(layout="page_head", page_size=1, target_layer_num=1)
    with pytest.raises(ValueError, match=r"page_head is not supported .*allowed: layer_first"):
        hicache.load_layer(pool, torch.tensor([0]), torch.tensor([0]), 0, is_draft=False)


@pytest.mark.parametrize(("free_gib", "fits"), [(3, True), (0.9, False)])
def test_a_small_machine_may_keep_what_was_asked_for(monkeypatch, free_gib, fits):
    """Upstream leaves 10 GiB alone, which such a machine may not have in all."""
    base = pytest.importorskip("sglang.srt.mem_cache.pool_host.base")
    detect = pytest.importorskip("sglang.srt.platforms.cpu_reference_detect")
    monkeypatch.setattr(base, "available_host_memory_bytes", lambda **_: int(free_gib * (1 << 30)))
    monkeypatch.setattr(base, "ranks_per_host", lambda: 1)
    monkeypatch.setattr(detect, "active", lambda: True)
    asked = 64 << 20
    assert (base.host_memory_budget_bytes(asked) >= asked) is fits
    # What upstream would size by what is free keeps its distance.
    assert base.host_memory_budget_bytes(auto_size=True) < 0
    monkeypatch.setattr(detect, "active", lambda: False)
    assert base.host_memory_budget_bytes(asked) < 0
