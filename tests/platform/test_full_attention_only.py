# SPDX-License-Identifier: Apache-2.0
"""Features that refuse caches of more than full attention, once model and cache exist."""

import pytest

pytest.importorskip("torch")

from sglang.srt.disaggregation.prefix_registry import prefill_side
from sglang.srt.mem_cache.cache_warming import factory
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from support.caches import scheduler_with_cache

CHECKS = {
    "--enable-cross-instance-cache-sync": prefill_side._check_supported,
    "--cache-warming-prompts": factory._check_supported,
}


@pytest.mark.parametrize("flag", CHECKS)
def test_full_attention_is_supported(flag):
    CHECKS[flag](scheduler_with_cache())


@pytest.mark.parametrize("flag", CHECKS)
@pytest.mark.parametrize("component", [ComponentType.SWA, ComponentType.MAMBA])
def test_other_caches_are_named(flag, component):
    with pytest.raises(ValueError, match=rf"{flag}.*also caches {component.name}"):
        CHECKS[flag](scheduler_with_cache(component))
