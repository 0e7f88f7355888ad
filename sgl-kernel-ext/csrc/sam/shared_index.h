// SPDX-License-Identifier: Apache-2.0
// Recent outputs of all requests of one namespace, in one generalized suffix automaton. Requests
// append in turn, so a token knows its neighbours in its own text by index. A state keeps the
// tokens that followed it, heaviest first, with weights that decay slowly (.995 an occurrence).
#pragma once

#include <cstdint>
#include <vector>

#include "block_pool.h"
#include "link_tree.h"
#include "own_index.h"

namespace sam {

class SharedIndex : public LinkTree<SharedIndex> {
 public:
  // With `skips`, states also keep what followed two tokens later, and pairs are counted.
  SharedIndex(uint32_t depth, bool skips);

  // Appends a token to the text that ends at `last` (kNone: a new text); returns its new end.
  uint32_t append(uint32_t last, uint32_t token);

  size_t tokens() const { return text_.size(); }
  size_t states() const { return states_.size() - 1; }
  size_t bytes() const;

  // The 16 heaviest successors one (1) or two (2) tokens after a state's contexts.
  void read(uint32_t ref, uint32_t ahead, Successors& out) const;
  // The same for order 0: the most frequent tokens.
  void read_order0(Successors& out) const;

  // Interface of LinkTree.
  uint32_t back(uint32_t pos, uint32_t steps) const {
    while (steps-- && pos != kNone) pos = text_[pos].prev;
    return pos == kNone ? kNone : text_[pos].token;
  }
  uint32_t len(uint32_t state) const { return states_[state].len; }
  uint32_t pos(uint32_t state) const { return states_[state].pos; }
  uint32_t new_state(uint32_t len, uint32_t pos, uint32_t child);
  void record(uint32_t state, uint32_t pos);

 private:
  struct Entry {
    uint32_t token, prev, next;
  };
  struct Weighted {
    uint32_t token;
    float weight;
  };
  // Weights are kept relative to a growing unit instead of decaying each of them.
  struct List {
    uint32_t count = 0;     // N
    uint32_t distinct = 0;  // U; a token that was dropped and comes back counts again
    uint32_t block = kNone;
    float unit = 1.0f;      // weight of an occurrence now
    float total = 0.0f;     // of all occurrences, including dropped tokens
    uint8_t size = 0;
    uint8_t log2 = 0;
  };
  struct State {
    uint32_t pos;
    uint32_t skip;  // index in skips_, or kNone
    List next;
    uint8_t len;
  };
  static constexpr int kMaxLog2 = 6;

  void add(List& list, uint32_t token, float growth, int max_log2);
  void copy(const List& from, List& to);
  void read_list(const List& list, Successors& out) const;
  uint32_t following(uint32_t pos, uint32_t steps) const;
  List& skip_list(State& state);

  bool with_skips_;
  std::vector<Entry> text_;
  std::vector<State> states_;
  std::vector<List> skips_;
  BlockPool<Weighted, kMaxLog2> blocks_;
};

}  // namespace sam
