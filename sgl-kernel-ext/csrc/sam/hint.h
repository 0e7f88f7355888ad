// SPDX-License-Identifier: Apache-2.0
// A draft tree that another proposer made for the same text, taken as one more source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sam {

constexpr int32_t kOffHint = -1;

struct Hint {
  std::vector<uint32_t> token;   // node 0 is the root
  std::vector<int32_t> parent;   // always smaller than the node

  // The child of `node` that continues with `token`, or kOffHint.
  int32_t follow(int32_t node, uint32_t wanted) const {
    if (node == kOffHint) return kOffHint;
    for (size_t i = 1; i < token.size(); ++i) {
      if (parent[i] == node && token[i] == wanted) return static_cast<int32_t>(i);
    }
    return kOffHint;
  }
};

}  // namespace sam
