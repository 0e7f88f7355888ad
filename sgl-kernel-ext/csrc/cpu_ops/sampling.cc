// SPDX-License-Identifier: Apache-2.0
#include "sampling.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace cpu_ops {

namespace {

// Ids in descending order of probability, as many as were asked for so far.
class Ranking {
 public:
  Ranking(const float* row, size_t vocabulary) : row_(row), ids_(vocabulary) {
    std::iota(ids_.begin(), ids_.end(), 0);
  }

  // Puts the first `count` in order; calls must not decrease `count`.
  void order(size_t count) {
    count = std::min(count, ids_.size());
    if (count <= sorted_) return;
    const auto before = [this](int32_t a, int32_t b) { return row_[a] != row_[b] ? row_[a] > row_[b] : a < b; };
    const auto first = ids_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    const auto middle = ids_.begin() + static_cast<std::ptrdiff_t>(count);
    if (middle != ids_.end()) std::nth_element(first, middle, ids_.end(), before);
    std::sort(first, middle, before);
    sorted_ = count;
  }

  size_t sorted() const { return sorted_; }
  int32_t operator[](size_t rank) const { return ids_[rank]; }

 private:
  const float* row_;
  std::vector<int32_t> ids_;
  size_t sorted_ = 0;
};

void keep_first(const Ranking& ranking, size_t count, const float* row, size_t vocabulary, float* out) {
  double mass = 0;
  for (size_t rank = 0; rank < count; ++rank) mass += row[ranking[rank]];
  std::fill_n(out, vocabulary, 0.0f);
  for (size_t rank = 0; rank < count; ++rank) {
    out[ranking[rank]] = static_cast<float>(row[ranking[rank]] / mass);
  }
}

}  // namespace

void top_k_renorm(const float* row, size_t vocabulary, int64_t k, float* out) {
  const auto count = static_cast<size_t>(std::clamp<int64_t>(k, 1, static_cast<int64_t>(vocabulary)));
  Ranking ranking(row, vocabulary);
  ranking.order(count);
  keep_first(ranking, count, row, vocabulary, out);
}

void top_p_renorm(const float* row, size_t vocabulary, float p, float* out) {
  Ranking ranking(row, vocabulary);
  double before = 0;
  size_t count = 0;
  while (count < vocabulary) {
    if (count == ranking.sorted()) ranking.order(std::max<size_t>(64, 4 * count));
    if (before > static_cast<double>(p)) break;
    before += row[ranking[count++]];
  }
  keep_first(ranking, std::max<size_t>(count, 1), row, vocabulary, out);
}

int64_t draw_token(const float* row, size_t vocabulary, float uniform) {
  const double mass = std::accumulate(row, row + vocabulary, 0.0);
  const double draw = static_cast<double>(uniform) * mass;
  double seen = 0;
  for (size_t token = 0; token < vocabulary; ++token) {
    seen += row[token];
    if (seen > draw) return static_cast<int64_t>(token);
  }
  return static_cast<int64_t>(vocabulary) - 1;
}

}  // namespace cpu_ops
