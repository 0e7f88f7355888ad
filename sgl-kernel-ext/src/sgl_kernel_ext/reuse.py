# SPDX-License-Identifier: Apache-2.0
"""Inner loops of the adaptive eviction policy.

Arguments are contiguous objects with the buffer protocol (`array.array`, `numpy.ndarray`) and
elements of 8 bytes; `out` is written. A `ValueError` names sizes that do not fit together.

* `page_hashes(tokens, first, page_size, pairs, position, base, out)`: one hash a page of int64
  `tokens` from index `first` on, as many as uint64 `out` has elements. `position` is that
  token's place on its path, `base` the hash of the page before it. `pairs`: a unit is a token
  and the next one.
* `best_ratios(hazard, widths, out)`: the policy's index `[classes, bins]` from its hazards of the
  same shape and the widths of the `bins`, all float64.

Both give the very bits of the Python versions in `sglang.srt.mem_cache.adaptive_eviction`.
"""

from sgl_kernel_ext._reuse import best_ratios, page_hashes

__all__ = ["best_ratios", "page_hashes"]
