# SPDX-License-Identifier: Apache-2.0
"""What warming refuses once the model and its cache exist."""

import pytest

pytest.importorskip("torch")

from sglang.srt.mem_cache.cache_warming.factory import _check_supported
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from support.caches import scheduler_with_cache


def test_full_attention_is_supported():
    _check_supported(scheduler_with_cache())


@pytest.mark.parametrize("component", [ComponentType.SWA, ComponentType.MAMBA])
def test_other_caches_are_named(component):
    with pytest.raises(ValueError, match=rf"also caches {component.name}"):
        _check_supported(scheduler_with_cache(component))
