// SPDX-License-Identifier: Apache-2.0
#include "shared_index.h"

#include <algorithm>

namespace sam {
namespace {

constexpr float kGrowth = 1.0f / 0.995f;        // contexts
constexpr float kRootGrowth = 1.0f / 0.999f;    // order 0
constexpr float kMaxUnit = 1e18f;
constexpr uint32_t kSkipDepth = 8;

}  // namespace

SharedIndex::SharedIndex(uint32_t depth, bool skips) : LinkTree(depth), with_skips_(skips) {
  states_.push_back({0, kNone, List{}, 0});
}

uint32_t SharedIndex::append(uint32_t last, uint32_t token) {
  const uint32_t at = static_cast<uint32_t>(text_.size());
  if (text_.size() == text_.capacity()) text_.reserve(text_.size() + text_.size() / 4 + 256);
  text_.push_back({token, last, kNone});
  add(states_[kRoot].next, token, kRootGrowth, kMaxLog2);
  if (last == kNone) return at;
  text_[last].next = at;

  uint32_t context[kMaxDepth];
  uint32_t available = 0;
  const uint32_t wanted = with_skips_ && depth() <= kSkipDepth ? kSkipDepth + 1 : depth();
  for (uint32_t pos = last; pos != kNone && available < wanted; pos = text_[pos].prev) {
    context[available++] = text_[pos].token;
  }
  // Skips first: a state that insert() makes reads what followed two tokens later from the text.
  if (with_skips_ && available > 1) {
    Chain chain;
    match(context + 1, std::min(available - 1, kSkipDepth), chain);
    for (uint32_t i = 0; i < chain.size; ++i) {
      if (chain.at[i].ref & kLeaf) continue;
      add(skip_list(states_[chain.at[i].ref]), token, kGrowth, kRecentLog2);
    }
  }
  insert(last, context, available);
  if (with_skips_ && available >= 4) insert_gap(last, context[0], context[3]);
  return at;
}

SharedIndex::List& SharedIndex::skip_list(State& state) {
  if (state.skip == kNone) {
    state.skip = static_cast<uint32_t>(skips_.size());
    if (skips_.size() == skips_.capacity()) skips_.reserve(skips_.size() + skips_.size() / 4 + 16);
    skips_.push_back(List{});
  }
  return skips_[state.skip];
}

uint32_t SharedIndex::following(uint32_t pos, uint32_t steps) const {
  while (steps-- && pos != kNone) pos = text_[pos].next;
  return pos == kNone ? kNone : text_[pos].token;
}

uint32_t SharedIndex::new_state(uint32_t len, uint32_t pos, uint32_t child) {
  State fresh{pos, kNone, List{}, static_cast<uint8_t>(len)};
  if (states_.size() == states_.capacity()) states_.reserve(states_.size() + states_.size() / 4 + 16);
  if (child & kLeaf) {
    add(fresh.next, following(child & ~kLeaf, 1), kGrowth, kMaxLog2 - 1);
    const uint32_t second = following(child & ~kLeaf, 2);
    if (with_skips_ && second != kNone && len) add(skip_list(fresh), second, kGrowth, kRecentLog2);
  } else {
    copy(states_[child].next, fresh.next);
    if (states_[child].skip != kNone) {
      List duplicate;
      copy(skips_[states_[child].skip], duplicate);
      skip_list(fresh) = duplicate;
    }
  }
  states_.push_back(fresh);
  return static_cast<uint32_t>(states_.size() - 1);
}

void SharedIndex::record(uint32_t state, uint32_t pos) {
  states_[state].pos = pos;
  add(states_[state].next, following(pos, 1), kGrowth, kMaxLog2 - 1);
}

void SharedIndex::copy(const List& from, List& to) {
  to = from;
  if (from.block == kNone) return;
  to.block = blocks_.take(from.log2);
  for (uint32_t i = 0; i < from.size; ++i) blocks_.at(to.block)[i] = blocks_.at(from.block)[i];
}

void SharedIndex::add(List& list, uint32_t token, float growth, int max_log2) {
  if (list.count) list.unit *= growth;
  ++list.count;
  if (list.block == kNone) list.block = blocks_.take(0);
  Weighted* items = blocks_.at(list.block);
  uint32_t i = 0;
  while (i < list.size && items[i].token != token) ++i;
  if (i < list.size) {
    items[i].weight += list.unit;
  } else {
    ++list.distinct;
    if (list.size == (1u << list.log2)) {
      if (list.log2 < max_log2) {
        list.block = blocks_.grow(list.block, list.log2);
        ++list.log2;
        items = blocks_.at(list.block);
      } else {
        --list.size;  // the lightest makes room
      }
    }
    i = list.size++;
    items[i] = {token, list.unit};
  }
  list.total += list.unit;
  for (; i && items[i].weight > items[i - 1].weight; --i) {
    const Weighted lighter = items[i - 1];
    items[i - 1] = items[i];
    items[i] = lighter;
  }
  if (list.unit > kMaxUnit) {
    const float scale = 1.0f / list.unit;
    for (uint32_t j = 0; j < list.size; ++j) items[j].weight *= scale;
    list.total *= scale;
    list.unit = 1.0f;
  }
}

void SharedIndex::read_list(const List& list, Successors& out) const {
  out.count = list.count;
  out.distinct = list.distinct;
  out.size = list.size < kRecent ? list.size : kRecent;
  if (!out.size) return;
  const Weighted* items = blocks_.at(list.block);
  const float scale = 1.0f / list.total;
  for (uint32_t i = 0; i < out.size; ++i) {
    out.token[i] = items[i].token;
    out.share[i] = items[i].weight * scale;
  }
}

void SharedIndex::read(uint32_t ref, uint32_t ahead, Successors& out) const {
  out.count = out.distinct = out.size = 0;
  if (ref & kLeaf) {
    const uint32_t token = following(ref & ~kLeaf, ahead);
    if (token == kNone) return;
    out.count = out.distinct = out.size = 1;
    out.token[0] = token;
    out.share[0] = 1.0f;
  } else if (ahead == 1) {
    read_list(states_[ref].next, out);
  } else if (states_[ref].skip != kNone) {
    read_list(skips_[states_[ref].skip], out);
  }
}

void SharedIndex::read_order0(Successors& out) const { read_list(states_[kRoot].next, out); }

size_t SharedIndex::bytes() const {
  return sizeof(*this) + text_.capacity() * sizeof(Entry) + states_.capacity() * sizeof(State) +
         skips_.capacity() * sizeof(List) + children_.bytes() + blocks_.bytes();
}

}  // namespace sam
