// SPDX-License-Identifier: Apache-2.0
#include "proposer.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <type_traits>

namespace sam {
namespace {

constexpr uint32_t kFirstPause = 16, kLongestPause = 256, kTrialSteps = 4;
// Of a prompt, the tokens that enter the order-0 counts; older ones have decayed to nothing.
constexpr size_t kRecentWindow = 512;
// An empty store takes as much memory as one of about so many tokens.
constexpr uint64_t kNamespaceTokens = 64;
// A namespace id that is reused must not continue a text of its former owner.
constexpr uint64_t kForeignEpoch = 2;

DraftSource source_of(const Origin& origin) {
  switch (origin.source) {
    case kShared:
    case kSharedSkip:
    case kSharedGap:
    case kShared0: return kSharedOutputs;
    case kHint: return kCorpus;
    default: return kRequestText;
  }
}

// A request can hold 1.5 times its bound, the index and the start of the next, and the bound of all
// gives up other requests, never the last one: so a request's own bound has to keep within it.
Config bounded(Config config) {
  const uint64_t bound = std::max<uint64_t>(2, config.max_own_tokens / 3 * 2);
  config.max_request_tokens = static_cast<uint32_t>(std::min<uint64_t>(config.max_request_tokens, bound));
  return config;
}

}  // namespace

size_t StepOutput::bytes(size_t n, size_t width) {
  const size_t place = sizeof(int64_t) + sizeof(int32_t) + sizeof(float) + 2;
  return n * (width * (place + width) + sizeof(int32_t));
}

StepOutput StepOutput::in(uint8_t* block, size_t n, size_t width) {
  StepOutput out;
  const auto next = [&block](size_t count, auto*& field) {
    using Field = std::remove_reference_t<decltype(*field)>;
    field = reinterpret_cast<Field*>(block);
    block += count * sizeof(Field);
  };
  next(n * width, out.tokens);
  next(n * width, out.parents);
  next(n * width, out.probabilities);
  next(n, out.sizes);
  next(n * width * width, out.mask);
  next(n * width, out.sources);
  next(n * width, out.match_lengths);
  return out;
}

Proposer::Proposer(const Config& config, uint32_t vocab_size)
    : config_(bounded(config)), vocab_size_(vocab_size), blender_(config_), builder_(config_) {}

Proposer::Request& Proposer::request(uint64_t id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) {
    throw std::out_of_range("request " + std::to_string(id) + " is not known: call begin() first");
  }
  return *found->second;
}

int64_t Proposer::length(uint64_t id) const {
  const auto found = requests_.find(id);
  return found == requests_.end() ? -1 : static_cast<int64_t>(found->second->length);
}

uint32_t Proposer::space_of(const std::string& name) {
  const auto found = space_ids_.find(name);
  if (found != space_ids_.end()) return found->second;
  uint32_t id;
  if (free_spaces_.empty()) {
    id = static_cast<uint32_t>(spaces_.size());
    spaces_.push_back(std::make_unique<Space>());
  } else {
    id = free_spaces_.back();
    free_spaces_.pop_back();
  }
  Space& space = *spaces_[id];
  space.name = name;
  space.epoch += kForeignEpoch;
  space.current = std::make_unique<SharedIndex>(config_.shared_depth, config_.full);
  space_ids_[name] = id;
  return id;
}

void Proposer::forget(const std::string& name) {
  const auto found = space_ids_.find(name);
  if (found == space_ids_.end()) return;
  const uint32_t id = found->second;
  Space& space = *spaces_[id];
  shared_tokens_ -= space.current->tokens() + (space.next ? space.next->tokens() : 0);
  space.current.reset();
  space.next.reset();
  // Requests of this namespace that still run share nothing from now on.
  for (auto& entry : requests_) {
    if (entry.second->space == id) entry.second->space = kNone;
  }
  space_ids_.erase(found);
  free_spaces_.push_back(id);
}

void Proposer::begin(uint64_t id, const int64_t* tokens, size_t count, size_t shared_from,
                     const std::string& space) {
  end(id);
  auto fresh = std::make_unique<Request>();
  Request& r = *fresh;
  r.used = ++clock_;
  r.next_pause = kFirstPause;
  r.own = std::make_unique<OwnIndex>(config_.own_depth, config_.full);
  const size_t bound = config_.max_request_tokens;
  r.own->reserve(std::min(count, bound) + 64);
  if (config_.shared) {
    r.space = space_of(space);
    r.epoch = spaces_[r.space]->epoch;
    spaces_[r.space]->used = r.used;
  }
  requests_[id] = std::move(fresh);
  size_t first = 0;
  if (count > bound) {
    first = count - bound / 2;  // older tokens would be dropped on the way
    totals_.own_dropped += first;
  }
  for (size_t i = first; i < count; ++i) {
    const uint32_t token = token_of(tokens[i]);
    append_own(r, token);
    if (config_.full && token != kSeparator && i + kRecentWindow >= count) r.recent.append(token);
  }
  for (size_t i = shared_from; i < count; ++i) append_shared(r, token_of(tokens[i]));
  r.length = count;
  enforce_bounds(id);
}

void Proposer::append_own(Request& r, uint32_t token) {
  const size_t bound = config_.max_request_tokens;
  r.own->append(token);
  ++own_tokens_;
  // Twice the tokens that are kept at a change-over are enough of a start for the next index.
  if (r.own_next || r.own->tokens() > bound / 2) {
    if (!r.own_next) r.own_next = std::make_unique<OwnIndex>(config_.own_depth, config_.full);
    r.own_next->append(token);
    ++own_tokens_;
  }
  if (r.own->tokens() >= bound) {
    totals_.own_dropped += r.own->tokens() - r.own_next->tokens();
    own_tokens_ -= r.own->tokens();
    r.own = std::move(r.own_next);
  }
}

void Proposer::append_shared(Request& r, uint32_t token) {
  if (!config_.shared || r.space == kNone) return;
  Space& space = *spaces_[r.space];
  space.used = clock_;
  if (r.epoch != space.epoch) {
    r.last = r.epoch + 1 == space.epoch ? r.last_next : kNone;
    r.last_next = kNone;
    r.epoch = space.epoch;
  }
  if (token == kSeparator) {
    r.last = r.last_next = kNone;
    return;
  }
  r.last = space.current->append(r.last, token);
  ++shared_tokens_;
  const size_t bound = config_.max_shared_tokens;
  if (space.next || space.current->tokens() > bound / 2) {
    if (!space.next) space.next = std::make_unique<SharedIndex>(config_.shared_depth, config_.full);
    r.last_next = space.next->append(r.last_next, token);
    ++shared_tokens_;
  }
  if (space.current->tokens() >= bound) {
    totals_.shared_dropped += space.current->tokens() - space.next->tokens();
    shared_tokens_ -= space.current->tokens();
    space.current = std::move(space.next);
    ++space.epoch;
  }
}

void Proposer::enforce_bounds(uint64_t keep) {
  while (own_tokens_ > config_.max_own_tokens && requests_.size() > 1) {
    uint64_t oldest = keep;
    uint64_t used = ~uint64_t{0};
    for (const auto& entry : requests_) {
      if (entry.first != keep && entry.second->used < used) {
        used = entry.second->used;
        oldest = entry.first;
      }
    }
    totals_.own_dropped += requests_[oldest]->own->tokens();
    ++totals_.requests_dropped;
    end(oldest);
  }
  // One namespace alone holds at most 1.5 times its bound: the index and the start of the next.
  const uint64_t bound = config_.max_shared_tokens + config_.max_shared_tokens / 2;
  while (shared_tokens_ + kNamespaceTokens * space_ids_.size() > bound && space_ids_.size() > 1) {
    const Space* oldest = nullptr;
    for (const auto& entry : space_ids_) {
      const Space* space = spaces_[entry.second].get();
      if (!oldest || space->used < oldest->used) oldest = space;
    }
    totals_.shared_dropped += oldest->current->tokens();
    ++totals_.namespaces_dropped;
    forget(std::string(oldest->name));
  }
}

Histories Proposer::histories(const Request& r) const {
  Histories h;
  h.own = r.own.get();
  if (config_.shared && r.space != kNone) h.shared = spaces_[r.space]->current.get();
  if (config_.full) h.recent = &r.recent;
  return h;
}

uint32_t Proposer::text(const Request& r, uint32_t* out) const { return r.own->tail(out, kMaxDepth); }

void Proposer::learn(Request& r, uint32_t truth, bool root, int32_t hint_node) {
  uint32_t tokens[kMaxDepth];
  const uint32_t available = text(r, tokens);
  if (!available || truth == kSeparator) return;
  const Histories h = histories(r);
  Chain own, shared, own_before, shared_before;
  const uint32_t* end = tokens + kMaxDepth;
  blender_.match(h, end, available, available, own, shared);
  if (config_.full) blender_.match(h, end - 1, available - 1, available - 1, own_before, shared_before);
  blender_.learn(h, {end, available, &own, &shared, &own_before, &shared_before, root, &r.hint, hint_node}, truth);
}

void Proposer::observe(Request& r, size_t accepted) {
  totals_.accepted += accepted;
  if (config_.kill_rate <= 0) return;
  const float rate = 1.0f / static_cast<float>(std::min(++r.measured, config_.kill_window));
  r.rate += rate * (static_cast<float>(accepted) - r.rate);
  if (r.trial) {
    --r.trial;
    if (accepted) {
      ++totals_.recoveries;
      r.trial = 0;
      r.measured = 0;
      r.rate = 0;
      r.next_pause = kFirstPause;
    } else if (!r.trial) {
      r.pause = r.next_pause;
      r.next_pause = std::min(2 * r.next_pause, kLongestPause);
    }
  } else if (r.measured >= config_.kill_window && r.rate < config_.kill_rate) {
    ++totals_.pauses;
    r.pause = r.next_pause;
    r.next_pause = std::min(2 * r.next_pause, kLongestPause);
  }
}

void Proposer::append(uint64_t id, const int64_t* tokens, size_t count) {
  Request& r = request(id);
  r.used = ++clock_;
  if (r.offered && count) observe(r, count - 1);
  int32_t hint_node = r.hint.token.empty() ? kOffHint : 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t token = token_of(tokens[i]);
    if (r.drafted) learn(r, token, i == 0, hint_node);
    hint_node = r.hint.follow(hint_node, token);
    append_own(r, token);
    if (config_.full && token != kSeparator) r.recent.append(token);
    append_shared(r, token);
  }
  r.length += count;
  r.drafted = r.offered = false;
}

void Proposer::propose(uint64_t id, const int64_t* hint_tokens, const int32_t* hint_parents, DraftTree& tree) {
  Request& r = request(id);
  r.hint.token.clear();
  r.hint.parent.clear();
  for (uint32_t i = 0; hint_tokens && i < config_.draft_token_num; ++i) {
    const int32_t parent = i ? hint_parents[i] : -1;
    const uint32_t token = token_of(hint_tokens[i]);
    // Children of a node that is left out are left out too: nothing leads to them.
    const bool wanted = i == 0 || (parent >= 0 && static_cast<uint32_t>(parent) < i && token != kSeparator);
    r.hint.token.push_back(wanted ? token : kSeparator);
    r.hint.parent.push_back(wanted ? parent : -2);
  }
  uint32_t tokens[kMaxDepth];
  const uint32_t available = text(r, tokens);
  ++totals_.steps;
  if (r.pause) {
    ++totals_.paused_steps;
    if (!--r.pause) r.trial = kTrialSteps;
    tree.size = 1;
    tree.token[0] = available ? tokens[kMaxDepth - 1] : 0;
    tree.parent[0] = -1;
    tree.probability[0] = 1;
    return;
  }
  if (!available) {
    tree.size = 1;
    tree.token[0] = 0;
    tree.parent[0] = -1;
    tree.probability[0] = 1;
    return;
  }
  builder_.build(blender_, histories(r), r.hint.token.empty() ? nullptr : &r.hint, tokens, available, tree);
  totals_.drafted += tree.size - 1;
  r.drafted = true;
  r.offered = tree.size > 1;
}

// Writes tree_ to place `at` of the batch.
void Proposer::write(size_t at, const StepOutput& out) const {
  const size_t width = config_.draft_token_num, first = at * width;
  bool* rows = out.mask + first * width;
  std::memset(rows, 0, width * width);
  for (size_t j = 0; j < width; ++j) {
    // Places that are not needed repeat token 0 below the root; verified, they are never wrong.
    const bool used = j < tree_.size;
    const int32_t parent = used ? tree_.parent[j] : 0;
    if (parent >= 0) std::memcpy(rows + j * width, rows + static_cast<size_t>(parent) * width, width);
    rows[j * width + j] = true;
    const bool drafted = used && j;
    out.tokens[first + j] = used ? tree_.token[j] : 0;
    out.parents[first + j] = used ? parent : -2;
    out.probabilities[first + j] = used ? tree_.probability[j] : 0.0f;
    out.sources[first + j] = drafted ? source_of(tree_.origin[j]) : kNoSource;
    out.match_lengths[first + j] = drafted ? tree_.origin[j].k : 0;
  }
  out.sizes[at] = static_cast<int32_t>(tree_.size);
}

void Proposer::step(const uint64_t* ids, size_t count, const int64_t* tokens, const int64_t* offsets,
                    const int64_t* hint_tokens, const int32_t* hint_parents, const StepOutput& out) {
  const size_t width = config_.draft_token_num;
  for (size_t i = 0; i < count; ++i) request(ids[i]);  // nothing changes if one is unknown
  for (size_t i = 0; i < count; ++i) {
    append(ids[i], tokens + offsets[i], static_cast<size_t>(offsets[i + 1] - offsets[i]));
  }
  for (size_t i = 0; i < count; ++i) {
    const size_t at = i * width;
    propose(ids[i], hint_tokens ? hint_tokens + at : nullptr, hint_tokens ? hint_parents + at : nullptr, tree_);
    write(i, out);
  }
  if (count) enforce_bounds(ids[count - 1]);
}

void Proposer::end(uint64_t id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  const Request& r = *found->second;
  own_tokens_ -= r.own->tokens() + (r.own_next ? r.own_next->tokens() : 0);
  requests_.erase(found);
}

void Proposer::reset() {
  requests_.clear();
  space_ids_.clear();
  spaces_.clear();
  free_spaces_.clear();
  own_tokens_ = shared_tokens_ = 0;
  blender_.reset();
}

Counters Proposer::counters() const {
  Counters c = totals_;
  c.requests = requests_.size();
  c.own_tokens = own_tokens_;
  c.shared_tokens = shared_tokens_;
  c.namespaces = space_ids_.size();
  for (const auto& entry : requests_) {
    c.own_bytes += sizeof(Request) + entry.second->own->bytes() + (entry.second->own_next ? entry.second->own_next->bytes() : 0);
  }
  for (const auto& entry : space_ids_) {
    const Space& space = *spaces_[entry.second];
    c.shared_bytes += sizeof(Space) + space.current->bytes() + (space.next ? space.next->bytes() : 0);
  }
  return c;
}

}  // namespace sam
