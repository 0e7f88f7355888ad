// SPDX-License-Identifier: Apache-2.0
#include "own_index.h"

namespace sam {
namespace {

constexpr float kDecay = 0.8f;

struct Powers {
  float at[kRecent];
  Powers() {
    float p = 1.0f;
    for (float& x : at) {
      x = p;
      p *= kDecay;
    }
  }
};
const Powers kPowers;

}  // namespace

OwnIndex::OwnIndex(uint32_t depth, bool gaps) : LinkTree(depth), gaps_(gaps) {
  states_.push_back({0, 0, 0, 0, 0});  // the root; order 0 is counted elsewhere
}

void OwnIndex::reserve(size_t tokens) {
  text_.reserve(tokens);
  // 1.3 table entries and .35 states a token are typical of text.
  children_.reserve(tokens + tokens / 4 + (gaps_ ? tokens - tokens / 4 : 0));
  states_.reserve(tokens / 4 + 16);
}

void OwnIndex::append(uint32_t token) {
  const size_t size = text_.size();
  if (size == text_.capacity()) text_.reserve(size + size / 4 + 64);
  text_.push_back(token);
  if (token == kSeparator) {
    run_ = 0;
    return;
  }
  if (run_) {
    const uint32_t pos = static_cast<uint32_t>(size - 1);
    uint32_t context[kMaxDepth];
    const uint32_t available = run_ < depth() ? run_ : depth();
    for (uint32_t d = 0; d < available; ++d) context[d] = text_[pos - d];
    insert(pos, context, available);
    if (gaps_ && run_ >= 4) insert_gap(pos, text_[pos], text_[pos - 3]);
  }
  ++run_;
}

uint32_t OwnIndex::tail(uint32_t* out, uint32_t wanted) const {
  const uint32_t n = run_ < wanted ? run_ : wanted;
  for (uint32_t d = 0; d < n; ++d) out[wanted - 1 - d] = text_[text_.size() - 1 - d];
  return n;
}

uint32_t OwnIndex::new_state(uint32_t len, uint32_t pos, uint32_t child) {
  State fresh{pos, 0, 0, static_cast<uint8_t>(len), 1};
  if (child & kLeaf) {
    fresh.count = 1;
    fresh.recent = recent_.take(1);
    recent_.at(fresh.recent)[0] = child & ~kLeaf;
  } else {
    const State& from = states_[child];
    fresh.count = from.count;
    fresh.log2 = from.log2;
    fresh.recent = recent_.take(from.log2);
    for (uint32_t i = 0; i < (1u << from.log2); ++i) {
      recent_.at(fresh.recent)[i] = recent_.at(from.recent)[i];
    }
  }
  if (states_.size() == states_.capacity()) states_.reserve(states_.size() + states_.size() / 4 + 8);
  states_.push_back(fresh);
  return static_cast<uint32_t>(states_.size() - 1);
}

void OwnIndex::record(uint32_t state, uint32_t pos) {
  State& s = states_[state];
  if (s.count == (1u << s.log2) && s.log2 < kRecentLog2) {
    s.recent = recent_.grow(s.recent, s.log2);
    ++s.log2;
  }
  recent_.at(s.recent)[s.count & ((1u << s.log2) - 1)] = pos;
  ++s.count;
  s.pos = pos;
}

void OwnIndex::read(uint32_t ref, uint32_t ahead, Successors& out) const {
  out.count = out.distinct = out.size = 0;
  if (ref & kLeaf) {
    const size_t at = (ref & ~kLeaf) + static_cast<size_t>(ahead);
    if (at >= text_.size() || text_[at] == kSeparator) return;
    out.count = out.distinct = out.size = 1;
    out.token[0] = text_[at];
    out.share[0] = 1.0f;
    return;
  }
  const State& s = states_[ref];
  const uint32_t* block = recent_.at(s.recent);
  const uint32_t mask = (1u << s.log2) - 1;
  const uint32_t n = s.count < kRecent ? s.count : kRecent;
  uint32_t lost = 0, used = 0;
  float total = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const size_t at = block[(s.count - 1 - i) & mask] + static_cast<size_t>(ahead);
    if (at >= text_.size() || text_[at] == kSeparator) {
      ++lost;
      continue;
    }
    const uint32_t token = text_[at];
    const float weight = kPowers.at[used++];
    total += weight;
    uint32_t j = 0;
    while (j < out.size && out.token[j] != token) ++j;
    if (j == out.size) {
      out.token[j] = token;
      out.share[j] = weight;
      ++out.size;
    } else {
      out.share[j] += weight;
    }
  }
  if (!used) return;
  out.count = s.count - lost;
  out.distinct = out.size;
  const float scale = 1.0f / total;
  for (uint32_t j = 0; j < out.size; ++j) out.share[j] *= scale;
}

size_t OwnIndex::bytes() const {
  return sizeof(*this) + text_.capacity() * sizeof(uint32_t) + states_.capacity() * sizeof(State) +
         children_.bytes() + recent_.bytes();
}

}  // namespace sam
