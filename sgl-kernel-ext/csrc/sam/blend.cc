// SPDX-License-Identifier: Apache-2.0
#include "blend.h"

#include <algorithm>

#include "fast_math.h"

namespace sam {
namespace {

constexpr uint32_t kSkipLength = 8;
constexpr float kFirstGuess = 1e-4f;      // probability of a token that no context lists
// Dozens of confident contexts that all miss the truth take q to 0 in single precision, and the
// responsibility of the next one would be 0 / 0: a weight that is not a number stays one for all.
constexpr float kLeastProbability = 1e-30f;
constexpr float kDiscount = 0.9f;         // estimates are multiplied by it when paths are compared
constexpr float kMaxProbability = 0.995f;
// Mass left to weaker contexts at which blending stops.
constexpr float kNegligible = 5e-3f;  // fast
constexpr float kFaint = 1e-3f;       // full

// Half the binary logarithm of 1 + k.
struct HalfLog {
  float at[kMaxDepth + 1];
  HalfLog() {
    for (int k = 0; k <= kMaxDepth; ++k) at[k] = 0.5f * log2_fast(1.0f + static_cast<float>(k));
  }
};
const HalfLog kHalfLog;

// States of skip contexts: those of up to 8 tokens, the last of which may hold longer ones.
uint32_t skip_states(const Chain& chain) {
  uint32_t n = 0;
  while (n < chain.size && chain.at[n++].k < kSkipLength) {
  }
  return n;
}

}  // namespace

void RecentTokens::append(uint32_t token) {
  ++count_;
  stale_ = true;
  uint32_t i = 0;
  while (i < size_ && items_[i].token != token) ++i;
  Item item{token, 1.0f, count_};
  if (i < size_) {
    item.weight += items_[i].weight * exp2_fast(kLog2Decay * static_cast<float>(count_ - items_[i].tick));
  } else {
    ++distinct_;
    if (size_ < kRecent) ++size_;
    i = size_ - 1;
  }
  for (; i; --i) items_[i] = items_[i - 1];
  items_[0] = item;
}

const Successors& RecentTokens::read() const {
  if (stale_) {
    stale_ = false;
    shares_.count = count_;
    shares_.distinct = distinct_;
    shares_.size = size_;
    float total = 0;
    for (uint32_t i = 0; i < size_; ++i) {
      const float age = static_cast<float>(count_ - items_[i].tick);
      shares_.token[i] = items_[i].token;
      shares_.share[i] = items_[i].weight * exp2_fast(kLog2Decay * age);
      total += shares_.share[i];
    }
    for (uint32_t i = 0; i < size_; ++i) shares_.share[i] /= total;
  }
  return shares_;
}

void Blender::match(const Histories& histories, const uint32_t* end, uint32_t own_limit, uint32_t shared_limit,
                    Chain& own, Chain& shared) const {
  uint32_t context[kMaxDepth];
  const uint32_t n = std::min<uint32_t>(std::max(own_limit, shared_limit), kMaxDepth);
  for (uint32_t d = 0; d < n; ++d) context[d] = end[-1 - static_cast<int>(d)];
  own.clear();
  shared.clear();
  if (histories.own) histories.own->match(context, std::min(n, own_limit), own);
  if (histories.shared) histories.shared->match(context, std::min(n, shared_limit), shared);
}

// Orders what there is from the strongest context to the weakest: longest suffixes first, a
// request's own before the shared one of the same length; the gap pairs stand between lengths 1
// and 2, and a hint before them; then skips, own before a shared one longer by one; then order 0, shared first.
void Blender::rank(const Histories& histories, const Position& position) {
  ranked_count_ = 0;
  longest_[0] = position.own->longest();
  longest_[1] = position.shared->longest();
  uint32_t own = position.own->size, shared = position.shared->size;
  const auto add = [this](Source source, uint32_t k, uint32_t ref) { ranked_[ranked_count_++] = {ref, k, source}; };
  const auto merge = [&](uint32_t shortest) {
    while (true) {
      const uint32_t k = own ? position.own->at[own - 1].k : 0;
      const uint32_t l = shared ? position.shared->at[shared - 1].k : 0;
      if (k < shortest && l < shortest) return;
      if (k >= l) add(kOwn, k, position.own->at[--own].ref);
      else add(kShared, l, position.shared->at[--shared].ref);
    }
  };
  merge(2);
  if (position.hint && position.hint_node != kOffHint) add(kHint, 0, 0);
  if (!config_.full) {
    merge(1);
    if (histories.shared) add(kShared0, 0, kRoot);
    return;
  }
  const bool gaps = position.available >= 4;
  if (gaps && histories.own) {
    const uint32_t ref = histories.own->match_gap(position.end[-1], position.end[-4]);
    if (ref != kNone) add(kOwnGap, 0, ref);
  }
  const bool first_own = own;
  if (first_own) add(kOwn, 1, position.own->at[--own].ref);
  if (gaps && histories.shared) {
    const uint32_t ref = histories.shared->match_gap(position.end[-1], position.end[-4]);
    if (ref != kNone) add(kSharedGap, 0, ref);
  }
  merge(1);

  own = skip_states(*position.own_before);
  shared = skip_states(*position.shared_before);
  while (own || shared) {
    const uint32_t k = own ? std::min(position.own_before->at[own - 1].k, kSkipLength) : 0;
    const uint32_t l = shared ? std::min(position.shared_before->at[shared - 1].k, kSkipLength) : 0;
    if (own && k + 1 >= l) add(kOwnSkip, k, position.own_before->at[--own].ref);
    else add(kSharedSkip, l, position.shared_before->at[--shared].ref);
  }
  if (histories.shared) add(kShared0, 0, kRoot);
  if (histories.recent) add(kOwn0, 0, kRoot);
}

// The children of a hint's node; the first counts most, since proposers list the best first.
void Blender::read_hint(const Hint& hint, int32_t node, Successors& out) {
  out.size = 0;
  float total = 0;
  for (size_t i = 1; i < hint.token.size() && out.size < kRecent; ++i) {
    if (hint.parent[i] != node) continue;
    out.token[out.size] = hint.token[i];
    out.share[out.size] = 1.0f / static_cast<float>(out.size + 1);
    total += out.share[out.size++];
  }
  out.count = out.size ? 1 : 0;
  out.distinct = out.size;
  for (uint32_t i = 0; i < out.size; ++i) out.share[i] /= total;
}

void Blender::read(const Histories& histories, const Position& position, const Ranked& ranked,
                   Successors& out) const {
  switch (ranked.source) {
    case kOwn:
    case kOwnGap: return histories.own->read(ranked.ref, 1, out);
    case kShared:
    case kSharedGap: return histories.shared->read(ranked.ref, 1, out);
    case kOwnSkip: return histories.own->read(ranked.ref, 2, out);
    case kSharedSkip: return histories.shared->read(ranked.ref, 2, out);
    case kHint: return read_hint(*position.hint, position.hint_node, out);
    case kShared0: return histories.shared->read_order0(out);
    default: out = histories.recent->read();
  }
}

// Mixes from the strongest context down, each taking its weight of what stronger ones left, until
// less than `negligible` is left.
void Blender::blend(const Histories& histories, const Position& position, float negligible) {
  rank(histories, position);
  clear_slots();
  context_count_ = 0;
  uint32_t last_count[kSources] = {};
  float left = 1;
  for (uint32_t i = 0; i < ranked_count_ && left > negligible; ++i) {
    Context& c = contexts_[context_count_];
    const Source source = ranked_[i].source;
    read(histories, position, ranked_[i], c.next);
    // Equal counts of two lengths of one source are the same occurrences: the longer one counts.
    if (!c.next.size || c.next.count == last_count[source]) continue;
    c.longest = last_count[source] == 0;
    last_count[source] = c.next.count;
    c.k = ranked_[i].k;
    c.cell = MixingWeights::cell(source, length_bucket(c.k), count_bucket(c.next.count),
                                 distinct_bucket(c.next.distinct), c.longest, position.root);
    c.weight = mixing_.weight(c.cell);
    const float weight = left * c.weight;
    left -= weight;
    const bool evident = source < kFeatureSources;
    const bool suffix = source == kOwn || source == kShared;
    const Origin origin{source, static_cast<uint8_t>(suffix ? c.k : 0)};
    for (uint32_t j = 0; j < c.next.size; ++j) {
      Slot& slot = slot_of(c.next.token[j]);
      const float part = weight * c.next.share[j];
      slot.probability += part;
      if (part > slot.most) {
        slot.most = part;
        slot.origin = origin;
      }
      if (evident && !(slot.seen >> source & 1)) {
        slot.seen |= 1u << source;
        slot.share[source] = c.next.share[j];
        slot.context[source] = static_cast<uint8_t>(context_count_);
      }
    }
    ++context_count_;
  }
}

Blender::Slot& Blender::slot_of(uint32_t token) {
  uint32_t i = (token * 0x9e3779b1u) >> (32 - kTableLog2);
  while (table_[i] != kEmpty) {
    Slot& slot = slots_[table_[i]];
    if (slot.token == token) return slot;
    i = (i + 1) & ((1u << kTableLog2) - 1);
  }
  table_[i] = static_cast<uint16_t>(slot_count_);
  Slot& slot = slots_[slot_count_++];
  slot.token = token;
  slot.home = i;
  slot.probability = 0;
  slot.most = -1;
  slot.seen = 0;
  return slot;
}

void Blender::clear_slots() {
  for (uint32_t i = 0; i < slot_count_; ++i) table_[slots_[i].home] = kEmpty;
  slot_count_ = 0;
}

// Indices of the most probable slots, best first; ties go to the one found first.
uint32_t Blender::best(uint32_t wanted, uint32_t* out) const {
  uint32_t n = 0;
  for (uint32_t i = 0; i < slot_count_; ++i) {
    const float p = slots_[i].probability;
    if (n == wanted && p <= slots_[out[n - 1]].probability) continue;
    uint32_t j = n < wanted ? n++ : n - 1;
    for (; j && slots_[out[j - 1]].probability < p; --j) out[j] = out[j - 1];
    out[j] = i;
  }
  return n;
}

void Blender::features(uint32_t rank, const Slot& slot, bool root, float* out) const {
  out[0] = 1;
  out[1] = logit(slot.probability);
  out[2] = rank == 0;
  out[3] = root;
  float* next = out + 4;
  for (uint32_t source = 0; source < kFeatureSources; ++source, next += 3) {
    if (slot.seen >> source & 1) {
      const Context& c = contexts_[slot.context[source]];
      const float n = static_cast<float>(c.next.count);
      const float seen = slot.share[source] * n;
      next[0] = 0.5f * 0.69314718f * log2_fast(seen / (n + 1 - seen));
      next[1] = kHalfLog.at[c.k];
      next[2] = c.longest;
    } else {
      next[0] = -1.5f;
      next[1] = next[2] = 0;
    }
  }
  next[0] = 0.6f * kHalfLog.at[longest_[0]];
  next[1] = 0.6f * kHalfLog.at[longest_[1]];
  next[2] = next[3] = 0;  // padding
}

uint32_t Blender::predict(const Histories& histories, const Position& position, Candidate* out) {
  uint32_t chosen[kBest];
  blend(histories, position, config_.full ? kFaint : kNegligible);
  if (!config_.full) {
    const uint32_t n = best(config_.children, chosen);
    for (uint32_t i = 0; i < n; ++i) {
      const Slot& slot = slots_[chosen[i]];
      out[i] = {slot.token, std::min(slot.probability, kMaxProbability) * kDiscount, slot.origin};
    }
    return n;
  }
  const uint32_t n = best(kBest, chosen);
  Candidate all[kBest];  // with logits for now
  uint32_t kept = 0;
  for (uint32_t i = 0; i < n; ++i) {
    float f[kPadded];
    features(i, slots_[chosen[i]], position.root, f);
    const float score = correction_.score(f, position.root);
    uint32_t j = kept++;
    for (; j && all[j - 1].probability < score; --j) all[j] = all[j - 1];
    all[j] = {slots_[chosen[i]].token, score, slots_[chosen[i]].origin};
  }
  kept = std::min(kept, config_.children);
  for (uint32_t i = 0; i < kept; ++i) {
    out[i] = all[i];
    out[i].probability = std::min(sigmoid(all[i].probability), kMaxProbability) * kDiscount;
  }
  return kept;
}

void Blender::learn(const Histories& histories, const Position& position, uint32_t truth) {
  // With the weights in force before this token.
  blend(histories, position, config_.full ? 0.0f : kNegligible);
  float q = kFirstGuess;
  for (uint32_t i = context_count_; i-- > 0;) {
    const Context& c = contexts_[i];
    float share = 0;
    for (uint32_t j = 0; j < c.next.size; ++j) {
      if (c.next.token[j] == truth) share = c.next.share[j];
    }
    const float explained = c.weight * share;
    const float mixed = explained + (1 - c.weight) * q;
    mixing_.learn(c.cell, explained / mixed);
    q = std::max(mixed, kLeastProbability);
  }
  if (!config_.full) return;
  uint32_t chosen[kBest];
  const uint32_t n = best(kBest, chosen);
  correction_.begin_update(position.root);
  for (uint32_t i = 0; i < n; ++i) {
    float f[kPadded];
    features(i, slots_[chosen[i]], position.root, f);
    correction_.learn(f, position.root, sigmoid(correction_.score(f, position.root)), slots_[chosen[i]].token == truth);
  }
}

}  // namespace sam
