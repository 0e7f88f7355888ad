// SPDX-License-Identifier: Apache-2.0
// One request's text (prompt and output) and its suffix automaton. A state remembers its count
// and the end positions of its last 16 occurrences; what followed them is read from the text when
// a draft is wanted, so counting costs one store a state and skip contexts cost nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "block_pool.h"
#include "link_tree.h"

namespace sam {

// Separates texts; never matches, never follows.
constexpr uint32_t kSeparator = 0x7fffffffu;
constexpr int kRecentLog2 = 4;
constexpr uint32_t kRecent = 1u << kRecentLog2;

// What followed a context: distinct tokens with their shares of the decayed weight.
struct Successors {
  uint32_t count = 0;     // N: occurrences that were followed by a token
  uint32_t distinct = 0;  // U
  uint32_t size = 0;
  uint32_t token[kRecent];
  float share[kRecent];
};

class OwnIndex : public LinkTree<OwnIndex> {
 public:
  OwnIndex(uint32_t depth, bool gaps);

  void reserve(size_t tokens);

  // Appends a token and counts the contexts that it ends.
  void append(uint32_t token);

  size_t tokens() const { return text_.size(); }
  size_t states() const { return states_.size() - 1; }
  size_t bytes() const;

  // Copies up to `wanted` tokens of the text's end (not past a separator), oldest first, so that
  // the last token is at out[wanted - 1]. Returns how many.
  uint32_t tail(uint32_t* out, uint32_t wanted) const;

  // What followed a state's last 16 occurrences `ahead` tokens later (1: next token; 2: skip),
  // most recent first, each weighing .8 of the one after it.
  void read(uint32_t ref, uint32_t ahead, Successors& out) const;

  // Interface of LinkTree.
  uint32_t back(uint32_t pos, uint32_t steps) const {
    if (steps > pos) return kNone;
    const uint32_t token = text_[pos - steps];
    return token == kSeparator ? kNone : token;
  }
  uint32_t len(uint32_t state) const { return states_[state].len; }
  uint32_t pos(uint32_t state) const { return states_[state].pos; }
  uint32_t new_state(uint32_t len, uint32_t pos, uint32_t child);
  void record(uint32_t state, uint32_t pos);

 private:
  struct State {
    uint32_t pos;    // end of one occurrence
    uint32_t count;  // occurrences followed by a token
    uint32_t recent; // block of end positions; occurrence i at i modulo capacity
    uint8_t len;
    uint8_t log2;    // of the block's capacity
  };

  bool gaps_;
  uint32_t run_ = 0;  // tokens since the last separator
  std::vector<uint32_t> text_;
  std::vector<State> states_;
  BlockPool<uint32_t, kRecentLog2> recent_;
};

}  // namespace sam
