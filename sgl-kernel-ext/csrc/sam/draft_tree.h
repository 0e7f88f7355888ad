// SPDX-License-Identifier: Apache-2.0
// A draft tree grown by expected acceptance.
#pragma once

#include <cstdint>

#include "blend.h"
#include "config.h"

namespace sam {

struct DraftTree {
  uint32_t size = 0;             // nodes, the root included
  uint32_t token[kMaxWidth];     // node 0 is the last token of the text
  int32_t parent[kMaxWidth];     // always smaller than the node; -1 at the root
  float probability[kMaxWidth];  // of the whole path
  Origin origin[kMaxWidth];      // not set at the root
};

class TreeBuilder {
 public:
  explicit TreeBuilder(const Config& config) : config_(config) {}

  // Best first on the product of the estimates along the path: the node whose path is the most
  // probable comes next, until the tree is full or the best path is below the threshold.
  // `text` holds `available` tokens that end at text[kMaxDepth - 1].
  // `hint` may be null.
  void build(Blender& blender, const Histories& histories, const Hint* hint, const uint32_t* text,
             uint32_t available, DraftTree& tree);

 private:
  struct Frontier {
    float probability;
    uint32_t token;
    uint32_t parent;
    Origin origin;
  };
  void expand(Blender& blender, const Histories& histories, const Hint* hint, const uint32_t* text,
              uint32_t available, const DraftTree& tree, uint32_t node);
  void push(const Frontier& entry, uint32_t room);

  const Config& config_;
  // Ordered, best first; never longer than the places left in the tree.
  Frontier frontier_[kMaxWidth + 1];
  uint32_t waiting_ = 0;
  Chain own_[kMaxWidth], shared_[kMaxWidth], own_before_, shared_before_;
  int32_t hint_node_[kMaxWidth];
};

}  // namespace sam
