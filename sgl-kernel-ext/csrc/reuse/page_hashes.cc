// SPDX-License-Identifier: Apache-2.0
#include "page_hashes.h"

namespace reuse {
namespace {

// A pair's second token has its position's factor times this.
constexpr std::uint64_t kSecond = 0xC2B2AE3D27D4EB4FULL;

std::uint64_t factor(std::uint64_t position) {
  std::uint64_t x = (position + 1) * 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return (x ^ (x >> 31)) | 1;
}

}  // namespace

void page_hashes(const std::int64_t* tokens, std::uint64_t position, std::size_t pages, std::size_t page_size,
                 bool pairs, std::uint64_t base, std::uint64_t* out) {
  std::uint64_t sum = base;
  for (std::size_t page = 0; page < pages; ++page) {
    for (std::size_t i = 0; i < page_size; ++i, ++tokens, ++position) {
      const std::uint64_t f = factor(position);
      sum += (static_cast<std::uint64_t>(tokens[0]) + 1) * f;
      if (pairs) sum += static_cast<std::uint64_t>(tokens[1]) * (f * kSecond);
    }
    out[page] = sum;
  }
}

}  // namespace reuse
