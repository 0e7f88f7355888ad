// SPDX-License-Identifier: Apache-2.0
#include "blend.h"

#include <algorithm>

#include "fast_math.h"

namespace sam {
namespace {

constexpr uint32_t kSkipLength = 8;
constexpr float kFirstGuess = 1e-4f;      // probability of a token that no context lists
constexpr float kDiscount = 0.9f;         // estimates are multiplied by it when paths are compared
constexpr float kMaxProbability = 0.995f;
constexpr float kNegligible = 2e-3f;      // mass left to weaker contexts at which `fast` stops

// Strength of a context, times 100; weaker contexts are blended first.
int strength(Source source, int k) {
  switch (source) {
    case kOwn0: return -100;
    case kShared0: return -99;
    case kSharedSkip: return -40 + 10 * k;
    case kOwnSkip: return -30 + 10 * k;
    case kShared: return 100 * k;
    case kOwn: return 100 * k + 50;
    case kSharedGap: return 150;
    default: return 151;
  }
}

}  // namespace

void RecentTokens::append(uint32_t token) {
  ++count_;
  uint32_t i = 0;
  while (i < size_ && items_[i].token != token) ++i;
  Item item{token, 1.0f, count_};
  if (i < size_) {
    item.weight += items_[i].weight * exp2_fast(-0.00723157f * static_cast<float>(count_ - items_[i].tick));
  } else {
    ++distinct_;
    if (size_ < kRecent) ++size_;
    i = size_ - 1;
  }
  for (; i; --i) items_[i] = items_[i - 1];
  items_[0] = item;
}

void RecentTokens::read(Successors& out) const {
  out.count = count_;
  out.distinct = distinct_;
  out.size = size_;
  float total = 0;
  for (uint32_t i = 0; i < size_; ++i) {
    out.token[i] = items_[i].token;
    out.share[i] = items_[i].weight * exp2_fast(-0.00723157f * static_cast<float>(count_ - items_[i].tick));
    total += out.share[i];
  }
  for (uint32_t i = 0; i < size_; ++i) out.share[i] /= total;
}

void Blender::match(const Histories& histories, const uint32_t* end, uint32_t available, Chain& own,
                    Chain& shared) const {
  uint32_t context[kMaxDepth];
  const uint32_t n = available < kMaxDepth ? available : kMaxDepth;
  for (uint32_t d = 0; d < n; ++d) context[d] = end[-1 - static_cast<int>(d)];
  own.clear();
  shared.clear();
  if (histories.own) histories.own->match(context, n, own);
  if (histories.shared) histories.shared->match(context, n, shared);
}

Blender::Context* Blender::open(Source source, uint32_t k) {
  Context* context = &contexts_[context_count_];
  context->source = source;
  context->k = k;
  context->longest = false;
  return context;
}

// Keeps a context that was read, in place of the previous one of its source where their counts
// are equal: then both hold the same occurrences.
void Blender::keep(uint32_t first) {
  Context& context = contexts_[context_count_];
  if (!context.next.size) return;
  if (context_count_ > first && contexts_[context_count_ - 1].next.count == context.next.count) {
    contexts_[context_count_ - 1] = context;
  } else {
    ++context_count_;
  }
}

void Blender::close(uint32_t first, bool root) {
  if (context_count_ > first) contexts_[context_count_ - 1].longest = true;
  for (uint32_t i = first; i < context_count_; ++i) {
    Context& c = contexts_[i];
    const uint32_t n = count_bucket(c.next.count), u = distinct_bucket(c.next.distinct);
    c.cell = MixingWeights::cell(c.source, length_bucket(c.k), n, u, c.longest, root);
    c.weight = mixing_.weight(c.cell);
  }
}

template <typename Index>
void Blender::collect_chain(const Index& index, const Chain& chain, Source source, bool root) {
  const uint32_t first = context_count_;
  for (uint32_t i = 0; i < chain.size; ++i) {
    Context* context = open(source, chain.at[i].k);
    index.read(chain.at[i].ref, 1, context->next);
    keep(first);
  }
  close(first, root);
}

template <typename Index>
void Blender::collect_skips(const Index& index, const Chain& chain, Source source, bool root) {
  const uint32_t first = context_count_;
  for (uint32_t i = 0; i < chain.size; ++i) {
    Context* context = open(source, std::min(chain.at[i].k, kSkipLength));
    index.read(chain.at[i].ref, 2, context->next);
    keep(first);
    if (chain.at[i].k >= kSkipLength) break;
  }
  close(first, root);
}

template <typename Index>
void Blender::collect_gap(const Index& index, const Position& position, Source source) {
  if (position.available < 4) return;
  const uint32_t ref = index.match_gap(position.end[-1], position.end[-4]);
  if (ref == kNone) return;
  const uint32_t first = context_count_;
  Context* context = open(source, 0);
  index.read(ref, 1, context->next);
  keep(first);
  close(first, position.root);
}

void Blender::collect(const Histories& histories, const Position& position) {
  context_count_ = 0;
  longest_[0] = position.own->longest();
  longest_[1] = position.shared->longest();
  if (histories.recent) {
    Context* context = open(kOwn0, 0);
    histories.recent->read(context->next);
    const uint32_t first = context_count_;
    keep(first);
    close(first, position.root);
  }
  if (histories.shared) {
    Context* context = open(kShared0, 0);
    histories.shared->read_order0(context->next);
    const uint32_t first = context_count_;
    keep(first);
    close(first, position.root);
    collect_skips(*histories.shared, *position.shared_before, kSharedSkip, position.root);
    collect_chain(*histories.shared, *position.shared, kShared, position.root);
    collect_gap(*histories.shared, position, kSharedGap);
  }
  if (histories.own) {
    collect_skips(*histories.own, *position.own_before, kOwnSkip, position.root);
    collect_chain(*histories.own, *position.own, kOwn, position.root);
    collect_gap(*histories.own, position, kOwnGap);
  }
  int keys[kMaxContexts];
  for (uint32_t i = 0; i < context_count_; ++i) {
    const int key = strength(contexts_[i].source, static_cast<int>(contexts_[i].k));
    uint32_t j = i;
    for (; j && keys[j - 1] > key; --j) {
      keys[j] = keys[j - 1];
      order_[j] = order_[j - 1];
    }
    keys[j] = key;
    order_[j] = static_cast<uint16_t>(i);
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
  slot.seen = 0;
  return slot;
}

void Blender::clear_slots() {
  for (uint32_t i = 0; i < slot_count_; ++i) table_[slots_[i].home] = kEmpty;
  slot_count_ = 0;
}

void Blender::blend() {
  clear_slots();
  float left = 1;
  for (uint32_t i = context_count_; i-- > 0;) {
    const Context& c = contexts_[order_[i]];
    const float weight = left * c.weight;
    left -= weight;
    const bool evident = c.source < kFeatureSources;
    for (uint32_t j = 0; j < c.next.size; ++j) {
      Slot& slot = slot_of(c.next.token[j]);
      slot.probability += weight * c.next.share[j];
      if (evident && !(slot.seen >> c.source & 1)) {
        slot.seen |= 1u << c.source;
        slot.evidence[c.source] = {c.next.share[j], c.next.count, c.k, c.longest};
      }
    }
  }
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
      const Evidence& e = slot.evidence[source];
      const float n = static_cast<float>(e.count);
      next[0] = 0.5f * logit(e.share * n / (n + 1));
      next[1] = 0.5f * log2_fast(1.0f + static_cast<float>(e.k));
      next[2] = e.longest;
    } else {
      next[0] = -1.5f;
      next[1] = next[2] = 0;
    }
  }
  next[0] = 0.3f * log2_fast(1.0f + static_cast<float>(longest_[0]));
  next[1] = 0.3f * log2_fast(1.0f + static_cast<float>(longest_[1]));
}

uint32_t Blender::predict(const Histories& histories, const Position& position, Candidate* out) {
  uint32_t chosen[kBest];
  if (!config_.full) {
    blend_states(histories, position);
    const uint32_t n = best(config_.children, chosen);
    for (uint32_t i = 0; i < n; ++i) {
      out[i] = {slots_[chosen[i]].token, std::min(slots_[chosen[i]].probability, kMaxProbability) * kDiscount};
    }
    return n;
  }
  collect(histories, position);
  blend();
  const uint32_t n = best(kBest, chosen);
  Candidate all[kBest];
  uint32_t kept = 0;
  for (uint32_t i = 0; i < n; ++i) {
    float f[kFeatures];
    features(i, slots_[chosen[i]], position.root, f);
    const float p = correction_.apply(f, position.root);
    uint32_t j = kept++;
    for (; j && all[j - 1].probability < p; --j) all[j] = all[j - 1];
    all[j] = {slots_[chosen[i]].token, p};
  }
  kept = std::min(kept, config_.children);
  for (uint32_t i = 0; i < kept; ++i) {
    out[i] = {all[i].token, std::min(all[i].probability, kMaxProbability) * kDiscount};
  }
  return kept;
}

// `fast`: suffix states only, strongest first, until what is left to weaker ones is negligible.
void Blender::blend_states(const Histories& histories, const Position& position) {
  clear_slots();
  uint32_t own = position.own->size, shared = position.shared->size;
  float left = 1;
  Successors next;
  while ((own || shared) && left > kNegligible) {
    const bool take_own = own && (!shared || position.own->at[own - 1].k >= position.shared->at[shared - 1].k);
    if (take_own) histories.own->read(position.own->at[--own].ref, 1, next);
    else histories.shared->read(position.shared->at[--shared].ref, 1, next);
    if (!next.size) continue;
    const float weight = left * static_weight(take_own ? kOwn : kShared, count_bucket(next.count), distinct_bucket(next.distinct));
    left -= weight;
    for (uint32_t j = 0; j < next.size; ++j) slot_of(next.token[j]).probability += weight * next.share[j];
  }
}

void Blender::learn(const Histories& histories, const Position& position, uint32_t truth) {
  if (!config_.full) return;
  collect(histories, position);
  blend();  // with the weights in force before this token
  float q = kFirstGuess;
  for (uint32_t i = 0; i < context_count_; ++i) {
    const Context& c = contexts_[order_[i]];
    float share = 0;
    for (uint32_t j = 0; j < c.next.size; ++j) {
      if (c.next.token[j] == truth) share = c.next.share[j];
    }
    const float explained = c.weight * share;
    const float mixed = explained + (1 - c.weight) * q;
    mixing_.learn(c.cell, explained / mixed);
    q = mixed;
  }
  uint32_t chosen[kBest];
  const uint32_t n = best(kBest, chosen);
  correction_.begin_update(position.root);
  for (uint32_t i = 0; i < n; ++i) {
    float f[kFeatures];
    features(i, slots_[chosen[i]], position.root, f);
    correction_.learn(f, position.root, correction_.apply(f, position.root), slots_[chosen[i]].token == truth);
  }
}

}  // namespace sam
