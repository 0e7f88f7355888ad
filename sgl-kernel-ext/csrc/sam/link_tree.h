// SPDX-License-Identifier: Apache-2.0
// States and suffix links of a depth-limited generalized suffix automaton, extended online.
//
// A state is a set of contexts (token strings ending somewhere in the text) with the same end
// positions; `len` is the longest of them, and a state's parent (its suffix link) holds the next
// shorter contexts. Children are found by the one token by which their contexts are longer than
// the parent's. Contexts longer than `depth` tokens are not told apart. States seen once are not
// stored: the table holds their end position instead. Transitions are not stored either: the
// states of all suffixes of a text are met by walking down from the root, one token of context
// at a time, in at most `depth` steps whatever the length of the text.
//
// Extending costs at most `depth` token comparisons and adds at most two table entries and one
// state. (The link tree of a suffix automaton is the suffix tree of the reversed text; this is
// Weiner's construction without Weiner links, which a bounded depth makes unnecessary.)
#pragma once

#include <cstdint>
#include <vector>

#include "token_map.h"

namespace sam {

constexpr uint32_t kLeaf = 0x80000000u;      // tag: the value is an end position, seen once
constexpr uint32_t kGapSpace = 0x80000000u;  // tag of the table's keys for {x[-1], x[-4]} pairs
constexpr int kMaxDepth = 32;
constexpr uint32_t kRoot = 0;

// A context of `k` tokens and the state that holds it (or kLeaf | end position).
struct Match {
  uint32_t k;
  uint32_t ref;
};

// All states on the suffixes of one text, shortest context first.
struct Chain {
  uint32_t size = 0;
  Match at[kMaxDepth];
  void clear() { size = 0; }
  void add(uint32_t k, uint32_t ref) { at[size++] = {k, ref}; }
  uint32_t longest() const { return size ? at[size - 1].k : 0; }
};

// Derived supplies the text and what a state remembers:
//   uint32_t back(uint32_t pos, uint32_t steps)   token `steps` before pos, or kNone past the start
//   uint32_t len(uint32_t state), pos(uint32_t state)
//   uint32_t new_state(uint32_t len, uint32_t pos, uint32_t child_ref)   a copy of what child knows
//   void record(uint32_t state, uint32_t pos)     one more occurrence, ending at pos
template <typename Derived>
class LinkTree {
 public:
  explicit LinkTree(uint32_t depth) : depth_(depth) {}

  uint32_t depth() const { return depth_; }

  // Counts the contexts that end at pos. `context[d]` is the token d before pos.
  void insert(uint32_t pos, const uint32_t* context, uint32_t available) {
    const uint32_t limit = available < depth_ ? available : depth_;
    uint32_t state = kRoot;
    uint32_t d = 0;
    while (d < limit) {
      uint32_t* slot = children_.find(state, context[d]);
      if (!slot) {
        children_.insert(state, context[d], kLeaf | pos);
        return;
      }
      const uint32_t child = *slot;
      const bool leaf = child & kLeaf;
      const uint32_t other = leaf ? child & ~kLeaf : self().pos(child);
      const uint32_t target = leaf ? depth_ : self().len(child);
      uint32_t m = d + 1;
      while (m < target && m < limit && self().back(other, m) == context[m]) ++m;
      if (m == target && !leaf) {
        self().record(child, pos);
        state = child;
        d = m;
        continue;
      }
      const uint32_t middle = self().new_state(m, pos, child);
      *slot = middle;
      if (m < target) {
        const uint32_t below = self().back(other, m);
        if (below != kNone) children_.insert(middle, below, child);
      }
      self().record(middle, pos);
      if (m < limit) children_.insert(middle, context[m], kLeaf | pos);
      return;
    }
  }

  // Collects the states of all suffixes of the text whose last tokens are context[0], [1], ...
  void match(const uint32_t* context, uint32_t available, Chain& out) const {
    const uint32_t limit = available < depth_ ? available : depth_;
    out.clear();
    uint32_t state = kRoot;
    uint32_t d = 0;
    while (d < limit) {
      const uint32_t child = children_.get(state, context[d]);
      if (child == kNone) return;
      const bool leaf = child & kLeaf;
      const uint32_t other = leaf ? child & ~kLeaf : self().pos(child);
      const uint32_t target = leaf ? depth_ : self().len(child);
      uint32_t m = d + 1;
      while (m < target && m < limit && self().back(other, m) == context[m]) ++m;
      out.add(m, child);
      if (leaf || m < target) return;
      state = child;
      d = m;
    }
  }

  // Counts one occurrence of the pair of the token at pos and the one three before it.
  void insert_gap(uint32_t pos, uint32_t last, uint32_t fourth) {
    uint32_t* slot = children_.find(kGapSpace | fourth, last);
    if (!slot) {
      children_.insert(kGapSpace | fourth, last, kLeaf | pos);
    } else {
      if (*slot & kLeaf) *slot = self().new_state(0, pos, *slot);
      self().record(*slot, pos);
    }
  }

  uint32_t match_gap(uint32_t last, uint32_t fourth) const {
    return children_.get(kGapSpace | fourth, last);
  }

  size_t entries() const { return children_.size(); }

 protected:
  TokenMap children_;

 private:
  Derived& self() { return static_cast<Derived&>(*this); }
  const Derived& self() const { return static_cast<const Derived&>(*this); }

  uint32_t depth_;
};

}  // namespace sam
