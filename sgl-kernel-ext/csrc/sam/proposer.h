// SPDX-License-Identifier: Apache-2.0
// All requests of a server and what they share; one call a decoding step. Not thread-safe by
// itself: the binding serialises calls.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "blend.h"
#include "config.h"
#include "draft_tree.h"

namespace sam {

struct Counters {
  uint64_t requests = 0;
  uint64_t own_tokens = 0, shared_tokens = 0;
  uint64_t own_bytes = 0, shared_bytes = 0;
  uint64_t own_dropped = 0, shared_dropped = 0;  // tokens given up to stay within the bounds
  uint64_t requests_dropped = 0;                 // whole requests given up
  uint64_t namespaces = 0, namespaces_dropped = 0;
  uint64_t steps = 0, drafted = 0, accepted = 0;
  uint64_t pauses = 0, recoveries = 0, paused_steps = 0;
};

// Where step() writes n trees of W places. The Python class DraftBatch says what they hold.
struct StepOutput {
  int64_t* tokens;         // [n, W]
  int32_t* parents;        // [n, W]
  float* probabilities;    // [n, W]
  int32_t* sizes;          // [n]
  bool* mask;              // [n, W, W]
  uint8_t* sources;        // [n, W]
  uint8_t* match_lengths;  // [n, W]

  // All of them one after the other in one block, in the order above.
  static size_t bytes(size_t n, size_t width);
  static StepOutput in(uint8_t* block, size_t n, size_t width);
};

// Values of StepOutput::sources.
enum DraftSource : uint8_t { kNoSource, kRequestText, kSharedOutputs, kCorpus };

class Proposer {
 public:
  Proposer(const Config& config, uint32_t vocab_size);

  // Starts a request with the text known so far. Tokens from `shared_from` on are put into the
  // shared store of `space`. An id that is in use starts anew.
  void begin(uint64_t id, const int64_t* tokens, size_t count, size_t shared_from, const std::string& space);

  // Appends what the target model produced since the last call and drafts; see the Python module.
  // The hints may be null; else they are trees of draft_token_num places, parent -2: no node.
  void step(const uint64_t* ids, size_t count, const int64_t* tokens, const int64_t* offsets,
            const int64_t* hint_tokens, const int32_t* hint_parents, const StepOutput& out);

  void append(uint64_t id, const int64_t* tokens, size_t count);
  void propose(uint64_t id, const int64_t* hint_tokens, const int32_t* hint_parents, DraftTree& tree);

  void end(uint64_t id);
  bool known(uint64_t id) const { return requests_.count(id) != 0; }
  // Tokens appended to a request so far, dropped ones included; -1: not known.
  int64_t length(uint64_t id) const;
  // Forgets all requests, shared outputs and what was learned.
  void reset();
  // Forgets the outputs of one namespace.
  void forget(const std::string& space);

  Counters counters() const;
  const Config& config() const { return config_; }

 private:
  // Outputs of one namespace. At capacity the older half is given up: `next` holds the newer half
  // and takes over, so no step ever rebuilds an index.
  struct Space {
    std::string name;
    std::unique_ptr<SharedIndex> current, next;
    uint64_t epoch = 0;  // how many times `next` took over
    uint64_t used = 0;   // clock of the last use
  };
  struct Request {
    std::unique_ptr<OwnIndex> own, own_next;
    RecentTokens recent;
    uint64_t length = 0;
    uint64_t used = 0;
    uint32_t space = 0;
    uint64_t epoch = 0;
    uint32_t last = kNone, last_next = kNone;  // end of this request's text in the shared index
    bool drafted = false;       // the last step looked for drafts: what comes now was verified
    bool offered = false;       // and it found some
    float rate = 0;             // rolling mean of accepted drafts a step
    uint32_t measured = 0;      // steps in it
    uint32_t pause = 0;         // steps still without drafts
    uint32_t next_pause = 0;    // length of the next pause
    Hint hint;                  // of the last step; empty: none
    uint32_t trial = 0;         // steps left of a trial after a pause
  };

  uint32_t token_of(int64_t id) const {
    return id < 0 || id >= vocab_size_ ? kSeparator : static_cast<uint32_t>(id);
  }
  uint32_t space_of(const std::string& name);
  void append_own(Request& request, uint32_t token);
  void append_shared(Request& request, uint32_t token);
  void enforce_bounds(uint64_t keep);
  void observe(Request& request, size_t accepted);
  void learn(Request& request, uint32_t truth, bool root, int32_t hint_node);
  Histories histories(const Request& request) const;
  uint32_t text(const Request& request, uint32_t* out) const;
  void write(size_t at, const StepOutput& out) const;
  Request& request(uint64_t id);

  Config config_;
  int64_t vocab_size_;
  Blender blender_;
  TreeBuilder builder_;
  DraftTree tree_;
  std::unordered_map<uint64_t, std::unique_ptr<Request>> requests_;
  std::map<std::string, uint32_t> space_ids_;
  std::vector<std::unique_ptr<Space>> spaces_;
  std::vector<uint32_t> free_spaces_;
  uint64_t clock_ = 0;
  uint64_t own_tokens_ = 0, shared_tokens_ = 0;
  Counters totals_;
};

}  // namespace sam
