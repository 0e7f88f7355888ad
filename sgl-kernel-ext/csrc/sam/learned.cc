// SPDX-License-Identifier: Apache-2.0
#include "learned.h"

#include <cmath>

#include "fast_math.h"

namespace sam {
namespace {

constexpr float kCount[] = {1, 2, 3, 6, 12, 24};
constexpr float kDistinct[] = {1, 2, 3, 6};
constexpr float kMaxWeight = 0.98f;

float prior_weight(uint32_t source, uint32_t k_bucket, float n, float u) {
  float c = 1;
  if (source == kOwnSkip || source == kSharedSkip) c = 3;
  if (source == kOwnGap || source == kSharedGap || source == kHint) c = 2;
  const float b = static_cast<float>(k_bucket);
  const float g = 1 + 4 / (b * b + 0.5f);
  const float weight = n / (n + 4 * c * u * g);
  return weight < kMaxWeight ? weight : kMaxWeight;
}

}  // namespace

uint32_t count_bucket(uint32_t n) {
  return n < 3 ? (n < 2 ? 0 : 1) : n < 6 ? 2 : n < 12 ? 3 : n < 24 ? 4 : 5;
}

uint32_t distinct_bucket(uint32_t u) { return u < 2 ? 0 : u < 3 ? 1 : u < 6 ? 2 : 3; }

uint32_t length_bucket(uint32_t k) {
  if (k <= 8) return k;
  if (k <= 12) return 9 + (k - 9) / 2;
  const uint32_t bucket = 11 + (k - 13) / 4;
  return bucket < 13 ? bucket : 13;
}

MixingWeights::MixingWeights() {
  cells_.resize(cell(kSources, 0, 0, 0, false, false));
  for (uint32_t source = 0; source < kSources; ++source) {
    for (uint32_t k = 0; k < kLengths; ++k) {
      for (uint32_t n = 0; n < kCounts; ++n) {
        for (uint32_t u = 0; u < kDistincts; ++u) {
          const float weight = prior_weight(source, k, kCount[n], kDistinct[u]);
          const uint32_t at = cell(static_cast<Source>(source), k, n, u, false, false);
          for (uint32_t i = 0; i < 4; ++i) cells_[at + i] = {weight, 0};
        }
      }
    }
  }
}

void MixingWeights::learn(uint32_t cell, float responsibility) {
  Cell& c = cells_[cell];
  float rate = 1.0f / static_cast<float>(c.updates + 8);
  if (rate < 0.01f) rate = 0.01f;
  else ++c.updates;
  c.weight += rate * (responsibility - c.weight);
  if (c.weight < 0.002f) c.weight = 0.002f;
  if (c.weight > 0.998f) c.weight = 0.998f;
}

Correction::Correction() {
  for (auto& weights : weights_) {
    for (float& weight : weights) weight = 0;
    weights[1] = 1;  // the logit of the blended probability, unchanged
  }
}

float Correction::score(const float* features, bool root) const {
  const float* weights = weights_[root];
  // Four sums in a fixed order: the compiler may not reorder additions, but can use vectors here.
  float sum[4] = {0, 0, 0, 0};
  for (uint32_t i = 0; i < kPadded; i += 4) {
    for (uint32_t j = 0; j < 4; ++j) sum[j] += weights[i + j] * features[i + j];
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

void Correction::begin_update(bool root) {
  rate_ = 0.05f / std::sqrt(1.0f + static_cast<float>(updates_[root]) * 1e-3f);
  ++updates_[root];
}

void Correction::learn(const float* features, bool root, float probability, bool happened) {
  float* weights = weights_[root];
  const float step = rate_ * ((happened ? 1.0f : 0.0f) - probability);
  for (uint32_t i = 0; i < kPadded; ++i) weights[i] += step * features[i];
}

}  // namespace sam
