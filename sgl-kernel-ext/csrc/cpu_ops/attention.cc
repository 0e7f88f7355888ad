// SPDX-License-Identifier: Apache-2.0
#include "attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

// One build serves machines with and without wide vectors: the loader takes the fitting clone.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CPU_OPS_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CPU_OPS_CLONES
#endif

namespace cpu_ops {

namespace {

constexpr size_t kTile = 32;      // keys that are scored together
constexpr size_t kTurnRows = 8;   // rows for which a tile of keys is transposed first
constexpr size_t kUnitRows = 64;  // query rows of a request that one thread takes
constexpr float kUnseen = -std::numeric_limits<float>::infinity();

// exp(x) for x <= 0, relative error below 2e-7: 2^n times a polynomial of the remainder (Cephes' coefficients).
// Free of branches and calls, so that the compiler can vectorise it.
inline __attribute__((always_inline)) float exp_of_negative(float x) {
  x = std::max(x, -87.0f);
  const float n = static_cast<float>(static_cast<int32_t>(x * 1.44269504f - 0.5f));
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return p * power;
}

// Eight floats; the compiler lowers it to what a clone has. No alignment is assumed.
typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));

inline __attribute__((always_inline)) const Eight& eight(const float* at) {
  return *reinterpret_cast<const Eight*>(at);
}
inline __attribute__((always_inline)) Eight& eight(float* at) { return *reinterpret_cast<Eight*>(at); }

// Query rows and key head of one request.
struct Unit {
  size_t request, head, first_row, rows;  // rows of the request
};

// Buffers of one unit. Its rows are the query rows times the query heads that share the key head.
struct Scratch {
  std::vector<float> query, scores, sums, tops, acc, turned;

  void resize(size_t rows, size_t head_dim, size_t value_dim) {
    query.resize(rows * head_dim);
    scores.resize(rows * kTile);
    sums.assign(rows, 0.0f);
    tops.assign(rows, kUnseen);
    acc.assign(rows * value_dim, 0.0f);
    turned.resize(head_dim * kTile);
  }
};

// Scores of one query row against a tile, a key at a time.
template <size_t kDim>
inline __attribute__((always_inline)) void score_row(const float* query, const float* const* keys, size_t count,
                                                     size_t dim, float* scores) {
  const size_t size = kDim ? kDim : dim;
  for (size_t t = 0; t < count; ++t) {
    const float* key = keys[t];
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t d = 0; d < size; ++d) sum += query[d] * key[d];
    scores[t] = sum;
  }
}

// The same for `turned` keys [dim, kTile]: a dimension at a time, two rows together.
inline __attribute__((always_inline)) void score_rows(const float* query, size_t rows, const float* turned, size_t dim,
                                                      float* scores) {
  constexpr size_t kParts = kTile / 8;
  size_t r = 0;
  for (; r + 2 <= rows; r += 2) {
    const float* one = query + r * dim;
    const float* two = one + dim;
    Eight a[kParts] = {}, b[kParts] = {};
    for (size_t d = 0; d < dim; ++d) {
      for (size_t p = 0; p < kParts; ++p) {
        const Eight key = eight(turned + d * kTile + p * 8);
        a[p] += one[d] * key;
        b[p] += two[d] * key;
      }
    }
    for (size_t p = 0; p < kParts; ++p) {
      eight(scores + r * kTile + p * 8) = a[p];
      eight(scores + (r + 1) * kTile + p * 8) = b[p];
    }
  }
  for (; r < rows; ++r) {
    Eight a[kParts] = {};
    for (size_t d = 0; d < dim; ++d) {
      for (size_t p = 0; p < kParts; ++p) a[p] += query[r * dim + d] * eight(turned + d * kTile + p * 8);
    }
    for (size_t p = 0; p < kParts; ++p) eight(scores + r * kTile + p * 8) = a[p];
  }
}

template <size_t kDim>
inline __attribute__((always_inline)) void add_values(const float* weights, const float* const* values, size_t count,
                                                      size_t dim, float* acc) {
  if constexpr (kDim != 0) {
    // Sums stay in registers, 64 dimensions at a time.
    constexpr size_t kParts = 8;
    for (size_t from = 0; from < kDim; from += kParts * 8) {
      Eight sum[kParts];
      for (size_t p = 0; p < kParts; ++p) sum[p] = eight(acc + from + p * 8);
      for (size_t t = 0; t < count; ++t) {
        for (size_t p = 0; p < kParts; ++p) sum[p] += weights[t] * eight(values[t] + from + p * 8);
      }
      for (size_t p = 0; p < kParts; ++p) eight(acc + from + p * 8) = sum[p];
    }
  } else {
    for (size_t t = 0; t < count; ++t) {
#pragma omp simd
      for (size_t d = 0; d < dim; ++d) acc[d] += weights[t] * values[t][d];
    }
  }
}

// Adds a tile to the running softmax of rows `from` on (Milakov and Gimelshein, arXiv 1805.02867).
// seen(row, t) says whether a row sees the tile's key t; asked only where `checked`.
template <size_t kDim, typename Seen>
inline __attribute__((always_inline)) void add_tile(const float* const* keys, const float* const* values, size_t count,
                                                    size_t from, size_t rows, size_t head_dim, size_t value_dim,
                                                    bool checked, Seen seen, Scratch& s) {
  if (rows - from >= kTurnRows) {
    for (size_t t = 0; t < count; ++t) {
      for (size_t d = 0; d < head_dim; ++d) s.turned[d * kTile + t] = keys[t][d];
    }
    score_rows(s.query.data() + from * head_dim, rows - from, s.turned.data(), head_dim,
               s.scores.data() + from * kTile);
  } else {
    for (size_t r = from; r < rows; ++r) {
      score_row<kDim>(s.query.data() + r * head_dim, keys, count, head_dim, s.scores.data() + r * kTile);
    }
  }
  for (size_t r = from; r < rows; ++r) {
    float* scores = s.scores.data() + r * kTile;
    if (checked) {
      for (size_t t = 0; t < count; ++t) {
        if (!seen(r, t)) scores[t] = kUnseen;
      }
    }
    float top = s.tops[r];
#pragma omp simd reduction(max : top)
    for (size_t t = 0; t < count; ++t) top = scores[t] > top ? scores[t] : top;
    if (top == kUnseen) continue;  // no key seen so far
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t t = 0; t < count; ++t) {
      const float weight = scores[t] == kUnseen ? 0.0f : exp_of_negative(scores[t] - top);
      scores[t] = weight;
      sum += weight;
    }
    float* acc = s.acc.data() + r * value_dim;
    if (s.tops[r] != top) {
      const float shrink = s.tops[r] == kUnseen ? 0.0f : exp_of_negative(s.tops[r] - top);
      s.sums[r] *= shrink;
      for (size_t d = 0; d < value_dim; ++d) acc[d] *= shrink;
      s.tops[r] = top;
    }
    s.sums[r] += sum;
    add_values<kDim>(scores, values, count, value_dim, acc);
  }
}

// kDim: head and value dimension where both are equal and known, else 0.
template <size_t kDim>
inline __attribute__((always_inline)) void attend_unit(const RowPlan& plan, const Pool& pool, const float* query,
                                                       size_t q_heads, float scale, float* out, const Unit& unit,
                                                       Scratch& s) {
  const size_t request = unit.request;
  const size_t q_len = static_cast<size_t>(plan.q_starts[request + 1] - plan.q_starts[request]);
  const size_t first = static_cast<size_t>(plan.q_starts[request]) + unit.first_row;
  const auto k_len = static_cast<size_t>(plan.k_lens[request]);
  const size_t fold = q_heads / pool.heads, rows = unit.rows * fold, before = k_len - q_len;
  const int32_t* slots = plan.table + plan.rows[request] * plan.table_stride;
  s.resize(rows, pool.head_dim, pool.value_dim);
  for (size_t r = 0; r < rows; ++r) {  // row r is query row r / fold, head r % fold of the group
    const float* source = query + ((first + r / fold) * q_heads + unit.head * fold + r % fold) * pool.head_dim;
    float* target = s.query.data() + r * pool.head_dim;
    for (size_t d = 0; d < pool.head_dim; ++d) target[d] = source[d] * scale;
  }
  const bool* mask = plan.mask ? plan.mask + plan.mask_starts[request] : nullptr;
  const int64_t mask_stride = plan.mask ? plan.mask_strides[request] : 0;
  // Keys behind a causal unit's last row are seen by none of its rows.
  const size_t end = mask ? k_len : before + unit.first_row + unit.rows;
  const auto head = static_cast<int64_t>(unit.head);
  const float* keys[kTile];
  const float* values[kTile];
  for (size_t start = 0; start < end; start += kTile) {
    const size_t count = std::min(kTile, end - start);
    for (size_t t = 0; t < count; ++t) {
      const int64_t slot = slots[start + t];
      keys[t] = pool.keys + slot * pool.key_slot + head * pool.key_head;
      values[t] = pool.values + slot * pool.value_slot + head * pool.value_head;
    }
    const auto seen = [&](size_t r, size_t t) {
      if (start + t < before) return true;
      const size_t row = unit.first_row + r / fold, column = start + t - before;
      return mask ? mask[static_cast<int64_t>(row) * mask_stride + static_cast<int64_t>(column)] : column <= row;
    };
    // The first causal row that sees the tile's first key.
    const size_t from = !mask && start > before + unit.first_row ? (start - before - unit.first_row) * fold : 0;
    const bool checked = start + count > before + (mask ? 0 : unit.first_row + 1);
    add_tile<kDim>(keys, values, count, from, rows, pool.head_dim, pool.value_dim, checked, seen, s);
  }
  for (size_t r = 0; r < rows; ++r) {
    float* target = out + ((first + r / fold) * q_heads + unit.head * fold + r % fold) * pool.value_dim;
    const float* acc = s.acc.data() + r * pool.value_dim;
    const float share = s.sums[r] > 0 ? 1.0f / s.sums[r] : 0.0f;
    for (size_t d = 0; d < pool.value_dim; ++d) target[d] = acc[d] * share;
  }
}

CPU_OPS_CLONES void attend_unit_64(const RowPlan& plan, const Pool& pool, const float* query, size_t q_heads,
                                   float scale, float* out, const Unit& unit, Scratch& s) {
  attend_unit<64>(plan, pool, query, q_heads, scale, out, unit, s);
}

CPU_OPS_CLONES void attend_unit_128(const RowPlan& plan, const Pool& pool, const float* query, size_t q_heads,
                                    float scale, float* out, const Unit& unit, Scratch& s) {
  attend_unit<128>(plan, pool, query, q_heads, scale, out, unit, s);
}

CPU_OPS_CLONES void attend_unit_any(const RowPlan& plan, const Pool& pool, const float* query, size_t q_heads,
                                    float scale, float* out, const Unit& unit, Scratch& s) {
  attend_unit<0>(plan, pool, query, q_heads, scale, out, unit, s);
}

}  // namespace

void attend_rows(const RowPlan& plan, const Pool& pool, const float* query, size_t q_heads, float scale, float* out,
                 int threads) {
  auto run = attend_unit_any;
  if (pool.head_dim == pool.value_dim && pool.head_dim == 64) run = attend_unit_64;
  if (pool.head_dim == pool.value_dim && pool.head_dim == 128) run = attend_unit_128;
  std::vector<Unit> units;
  int64_t work = 0;
  for (size_t request = 0; request < plan.batch(); ++request) {
    const auto q_len = static_cast<size_t>(plan.q_starts[request + 1] - plan.q_starts[request]);
    work += plan.k_lens[request] * static_cast<int64_t>(q_len * q_heads);
    for (size_t head = 0; head < pool.heads; ++head) {
      for (size_t row = 0; row < q_len; row += kUnitRows) {
        units.push_back({request, head, row, std::min(kUnitRows, q_len - row)});
      }
    }
  }
  // A thread costs some microseconds to wake: not worth it below some thousand key rows.
  const auto count = static_cast<int64_t>(units.size());
  [[maybe_unused]] const int workers =
      static_cast<int>(std::max<int64_t>(1, std::min<int64_t>({threads, count, work / 4096})));
#pragma omp parallel num_threads(workers)
  {
    Scratch scratch;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < count; ++i) {
      run(plan, pool, query, q_heads, scale, out, units[static_cast<size_t>(i)], scratch);
    }
  }
}

}  // namespace cpu_ops
