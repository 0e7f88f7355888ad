// SPDX-License-Identifier: Apache-2.0
// Attention over a token-indexed KV pool: prefill, decoding and verification of draft trees.
//
// Keys and values are read where they are, so nothing is gathered or padded, and a request's result does not
// depend on the other requests of the batch.
#pragma once

#include <cstdint>
#include <vector>

#include "ints.h"

namespace cpu_ops {

// What each request of a batch reads. Request i owns query rows q_starts[i] .. q_starts[i + 1), which are the last
// of its k_lens[i] tokens.
struct RowPlan {
  const int32_t* table = nullptr;  // slots, [requests, stride]
  int64_t table_stride = 0;
  std::vector<int64_t> rows, q_starts, k_lens;  // rows: of the table
  // Where `mask` is set, query row j of request i sees its token k_len - q_len + c as
  // mask[mask_starts[i] + j * mask_strides[i] + c] says; else rows are causal.
  const bool* mask = nullptr;
  std::vector<int64_t> mask_starts, mask_strides;

  size_t batch() const { return rows.size(); }
};

// One layer's pool: `keys` and `values` with strides in elements between slots and between heads.
struct Pool {
  const float* keys;
  const float* values;
  int64_t key_slot, key_head, value_slot, value_head;
  size_t heads, head_dim, value_dim;
};

// Runs one layer. `query` is [rows, q_heads, head_dim] and `out` [rows, q_heads, value_dim], both contiguous.
// `q_heads` is a multiple of the pool's heads; consecutive query heads share a key head. Runs on
// `threads` threads at most.
void attend_rows(const RowPlan& plan, const Pool& pool, const float* query, size_t q_heads, float scale, float* out,
                 int threads);

}  // namespace cpu_ops
