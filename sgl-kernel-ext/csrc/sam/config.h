// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace sam {

struct Config {
  bool full = false;              // skip, gap and order-0 contexts, learned blend, correction
  uint32_t draft_token_num = 8;   // width of a tree, the root included
  uint32_t children = 8;          // of a node, at most
  uint32_t own_depth = 24;        // longest context in tokens
  uint32_t shared_depth = 16;
  bool shared = true;
  float threshold = 0.0f;         // a node whose path is less probable is not drafted
  uint32_t max_request_tokens = 1u << 20;
  uint64_t max_own_tokens = 1u << 24;
  uint64_t max_shared_tokens = 1u << 19;
  float kill_rate = 0.0f;         // accepted drafts a step under which a request pauses; 0: never
  uint32_t kill_window = 32;      // steps of the rolling mean
};

constexpr uint32_t kMaxWidth = 64;

}  // namespace sam
