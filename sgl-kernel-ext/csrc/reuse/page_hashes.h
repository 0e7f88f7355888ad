// SPDX-License-Identifier: Apache-2.0
// Names of pages: multilinear hashes of everything up to a page's end (Lemire and Kaser, 2014).
#pragma once

#include <cstddef>
#include <cstdint>

namespace reuse {

// Writes one hash for each of `pages` pages of `page_size` units to `out`. `tokens` is the first unit's token, which
// stands at `position` on its path; `base` is the hash of the page before it. With `pairs` a unit is a token and the
// one after it, so one more token is read. A hash is base + sum((token + 1) * factor(position)) modulo 2^64, the
// factors being odd outputs of splitmix64; about 2 ns a token.
void page_hashes(const std::int64_t* tokens, std::uint64_t position, std::size_t pages, std::size_t page_size,
                 bool pairs, std::uint64_t base, std::uint64_t* out);

}  // namespace reuse
