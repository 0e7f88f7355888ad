// SPDX-License-Identifier: Apache-2.0
// From contexts to next-token probabilities: a mixture from the weakest context to the strongest.
#pragma once

#include <cstdint>
#include <vector>

#include "config.h"
#include "hint.h"
#include "learned.h"
#include "own_index.h"
#include "shared_index.h"

namespace sam {

// The most recent tokens of one request with decayed counts; replaces an exact order-0 table.
class RecentTokens {
 public:
  void append(uint32_t token);
  const Successors& read() const;

 private:
  static constexpr float kLog2Decay = -0.00723157f;  // .995 a token
  struct Item {
    uint32_t token;
    float weight;
    uint32_t tick;
  };
  Item items_[kRecent];
  uint32_t size_ = 0, count_ = 0, distinct_ = 0;
  mutable bool stale_ = true;
  mutable Successors shares_;
};

// What can be consulted for one request. Null: not there.
struct Histories {
  const OwnIndex* own = nullptr;
  const SharedIndex* shared = nullptr;
  const RecentTokens* recent = nullptr;
};

// The states on the suffixes of a text (history and drafted path) and of the same without its
// last token, and the text itself: tokens[-1] is the last one, `available` may be read.
struct Position {
  const uint32_t* end;
  uint32_t available;
  const Chain* own;
  const Chain* shared;
  const Chain* own_before;
  const Chain* shared_before;
  bool root;
  const Hint* hint = nullptr;
  int32_t hint_node = kOffHint;  // that the path leads to
};

// What made a token likely: the context that contributed most to its probability.
struct Origin {
  Source source;
  uint8_t k;  // tokens that it matched; 0 for skips, pairs, order 0 and hints
};

struct Candidate {
  uint32_t token;
  float probability;
  Origin origin;
};

class Blender {
 public:
  explicit Blender(const Config& config) : config_(config) {}

  // Forgets what was learned.
  void reset() {
    mixing_ = MixingWeights();
    correction_ = Correction();
  }

  // Finds the chains of a text, of which `own_limit` and `shared_limit` tokens can match.
  void match(const Histories& histories, const uint32_t* end, uint32_t own_limit, uint32_t shared_limit,
             Chain& own, Chain& shared) const;

  // The most probable next tokens, best first; at most config.children.
  uint32_t predict(const Histories& histories, const Position& position, Candidate* out);

  // Learns from the token that the target model chose after `position`.
  void learn(const Histories& histories, const Position& position, uint32_t truth);

 private:
  static constexpr uint32_t kBest = 16;
  static constexpr uint32_t kMaxContexts = 2 * kMaxDepth + 24;
  static constexpr uint32_t kFeatureSources = 4;

  struct Ranked {
    uint32_t ref;
    uint32_t k;
    Source source;
  };
  struct Context {
    float weight;
    uint32_t k;
    uint32_t cell;
    bool longest;  // of its source
    Successors next;
  };
  struct Slot {
    uint32_t token;
    float probability;
    uint32_t home;  // in the table
    float most;     // the largest contribution, which is that of `origin`
    Origin origin;
    uint32_t seen;  // one bit a feature source
    // By the longest context of the source that lists the token.
    float share[kFeatureSources];
    uint8_t context[kFeatureSources];
  };

  void rank(const Histories& histories, const Position& position);
  void read(const Histories& histories, const Position& position, const Ranked& ranked, Successors& out) const;
  static void read_hint(const Hint& hint, int32_t node, Successors& out);
  void blend(const Histories& histories, const Position& position, float negligible);
  uint32_t best(uint32_t wanted, uint32_t* out) const;
  void features(uint32_t rank, const Slot& slot, bool root, float* out) const;
  Slot& slot_of(uint32_t token);
  void clear_slots();

  const Config& config_;
  MixingWeights mixing_;
  Correction correction_;

  Ranked ranked_[kMaxContexts];  // strongest first
  uint32_t ranked_count_ = 0;
  Context contexts_[kMaxContexts];  // those that were read and count, strongest first
  uint32_t context_count_ = 0;
  uint32_t longest_[2] = {0, 0};  // own, shared

  static constexpr uint32_t kTableLog2 = 11;  // twice the slots that can be needed
  static constexpr uint16_t kEmpty = 0xffff;
  std::vector<uint16_t> table_ = std::vector<uint16_t>(size_t{1} << kTableLog2, kEmpty);
  std::vector<Slot> slots_ = std::vector<Slot>(kMaxContexts * kRecent);
  uint32_t slot_count_ = 0;
};

}  // namespace sam
