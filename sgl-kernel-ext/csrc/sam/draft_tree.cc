// SPDX-License-Identifier: Apache-2.0
#include "draft_tree.h"

#include <cstring>

namespace sam {
namespace {

// No child can be more probable than this share of its parent (see Blender::predict).
constexpr float kBestChild = 0.995f * 0.9f;

}  // namespace

void TreeBuilder::push(const Frontier& entry, uint32_t room) {
  if (waiting_ == room) {
    if (entry.probability <= frontier_[waiting_ - 1].probability) return;
    --waiting_;
  }
  uint32_t i = waiting_++;
  for (; i && frontier_[i - 1].probability < entry.probability; --i) frontier_[i] = frontier_[i - 1];
  frontier_[i] = entry;
}

void TreeBuilder::expand(Blender& blender, const Histories& histories, const Hint* hint,
                         const uint32_t* text, uint32_t available, const DraftTree& tree, uint32_t node) {
  uint32_t path[kMaxDepth + kMaxWidth];
  uint32_t depth = 0;
  for (uint32_t i = node; i; i = static_cast<uint32_t>(tree.parent[i])) ++depth;
  const uint32_t* end;
  if (depth == 0) {
    end = text + kMaxDepth;
  } else {
    std::memcpy(path, text, kMaxDepth * sizeof(uint32_t));
    uint32_t at = kMaxDepth + depth;
    end = path + at;
    for (uint32_t i = node; i; i = static_cast<uint32_t>(tree.parent[i])) path[--at] = tree.token[i];
  }
  available += depth;
  // A child matches at most one token more than its parent, which saves the lookup that would fail.
  uint32_t own_limit = available, shared_limit = available;
  if (node) {
    own_limit = own_[tree.parent[node]].longest() + 1;
    shared_limit = shared_[tree.parent[node]].longest() + 1;
  }
  blender.match(histories, end, own_limit, shared_limit, own_[node], shared_[node]);
  hint_node_[node] = kOffHint;
  if (hint) hint_node_[node] = node ? hint->follow(hint_node_[tree.parent[node]], tree.token[node]) : 0;
  const Chain *own_before = &own_before_, *shared_before = &shared_before_;
  if (node) {
    own_before = &own_[tree.parent[node]];
    shared_before = &shared_[tree.parent[node]];
  } else if (config_.full) {
    blender.match(histories, end - 1, available - 1, available - 1, own_before_, shared_before_);
  }
  const Position position{end, available, &own_[node], &shared_[node], own_before, shared_before, node == 0,
                          hint, hint_node_[node]};
  Candidate children[kMaxWidth];
  const uint32_t n = blender.predict(histories, position, children);
  const uint32_t room = config_.draft_token_num - tree.size;
  for (uint32_t i = 0; i < n; ++i) {
    const float probability = tree.probability[node] * children[i].probability;
    if (probability < config_.threshold || probability <= 0) break;
    push({probability, children[i].token, node, children[i].origin}, room);
  }
}

void TreeBuilder::build(Blender& blender, const Histories& histories, const Hint* hint,
                        const uint32_t* text, uint32_t available, DraftTree& tree) {
  tree.size = 1;
  tree.token[0] = text[kMaxDepth - 1];
  tree.parent[0] = -1;
  tree.probability[0] = 1;
  waiting_ = 0;
  if (config_.draft_token_num < 2 || !available) return;
  expand(blender, histories, hint, text, available, tree, 0);
  while (tree.size < config_.draft_token_num && waiting_) {
    const Frontier next = frontier_[0];
    --waiting_;
    for (uint32_t i = 0; i < waiting_; ++i) frontier_[i] = frontier_[i + 1];
    const uint32_t node = tree.size++;
    tree.token[node] = next.token;
    tree.parent[node] = static_cast<int32_t>(next.parent);
    tree.probability[node] = next.probability;
    tree.origin[node] = next.origin;
    const uint32_t room = config_.draft_token_num - tree.size;
    // Its children cannot displace anything if the frontier already fills the tree.
    if (!room || (waiting_ >= room && frontier_[room - 1].probability >= next.probability * kBestChild)) {
      hint_node_[node] = kOffHint;
      own_[node].clear();
      shared_[node].clear();
      continue;
    }
    if (waiting_ > room) waiting_ = room;
    expand(blender, histories, hint, text, available, tree, node);
  }
}

}  // namespace sam
