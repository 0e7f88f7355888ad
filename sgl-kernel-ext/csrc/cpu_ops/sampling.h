// SPDX-License-Identifier: Apache-2.0
// Sampling while a draft is verified. Probabilities are float32 rows over the vocabulary; sums are in double.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cpu_ops {

// Keeps the `k` largest of row[0 .. vocabulary), of equal ones those with the lower ids, rescaled to sum 1; `k` is
// clamped to 1 .. vocabulary. Writes out[0 .. vocabulary), 0 where a token was dropped.
void top_k_renorm(const float* row, size_t vocabulary, int64_t k, float* out);

// Keeps the most likely tokens (ties as above) whose predecessors' mass is at most `p`, rescaled to sum 1.
void top_p_renorm(const float* row, size_t vocabulary, float p, float* out);

// The token in which a uniform draw in [0, 1), scaled by the row's own sum, falls.
int64_t draw_token(const float* row, size_t vocabulary, float uniform);

}  // namespace cpu_ops
