# SPDX-License-Identifier: Apache-2.0
"""A bounded set of 32-byte digests with the tiers that hold each: 38 to 43 bytes a digest.

`DigestTable(max_blocks)`; digests are passed as one `bytes` object, 32 bytes each, `tier` is a
bit or several of 1 to 127. Calls release the interpreter lock and are serialised by the object.

* `store(digests, tier)`: the tier holds them; returns how many were in no tier before.
* `remove(digests, tier)`: it no longer does; returns how many are in no tier now.
* `longest_prefix(digests)`: number of leading digests that some tier holds.
* `tiers(digests)`: one byte a digest, 0 where it is unknown.
* `dump()`: all digests and, in the same order, their tiers. `clear()`, `len()`.
* `nbytes`: memory in use. `evicted`: digests given up at `max_blocks`, those first that no
  `longest_prefix` found since the clock hand last passed them.
"""

from sgl_kernel_ext._prefix import DigestTable

__all__ = ["DigestTable"]
