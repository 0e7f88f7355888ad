# SPDX-License-Identifier: Apache-2.0
"""What is refused once the model and its cache exist."""

import pytest

pytest.importorskip("torch")

from sglang.srt.mem_cache.spec_radix_sharing.factory import check_supported
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from support.caches import scheduler_with_cache


def scheduler(*components, cache=None, disable=False, **changed):
    made = scheduler_with_cache(*components, cache=cache, disable=disable)
    vars(made).update({"enable_overlap_mlx": False, **changed})
    return made


class OtherCache(UnifiedRadixCache):
    """As LMCache's: a subclass with a checkpoint of its own."""


def test_full_attention_is_supported():
    check_supported(scheduler())


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: scheduler(ComponentType.SWA), "caches SWA"),
        (lambda: scheduler(ComponentType.MAMBA), "caches MAMBA"),
        (lambda: scheduler(cache=OtherCache), "tree_cache is OtherCache"),
        (lambda: scheduler(disable=True), "disabled for this model"),
        (lambda: scheduler(is_generation=False), "generates text"),
        (lambda: scheduler(enable_overlap_mlx=True), "MLX"),
    ],
)
def test_refused_with_the_reason(made, words):
    with pytest.raises(ValueError, match="--enable-spec-radix-sharing") as error:
        check_supported(made())
    assert words in str(error.value)
