// SPDX-License-Identifier: Apache-2.0
// What is learned from the tokens that the target model produced: how far to trust a context
// (a mixing weight a cell), and a logistic correction of the blended probabilities.
#pragma once

#include <cstdint>
#include <vector>

namespace sam {

enum Source : uint8_t { kOwn, kShared, kOwnSkip, kSharedSkip, kOwnGap, kSharedGap, kOwn0, kShared0, kHint, kSources };

// Counts enter rounded down, N to 1, 2, 3, 6, 12, 24 and U to 1, 2, 3, 6.
uint32_t count_bucket(uint32_t n);
uint32_t distinct_bucket(uint32_t u);
// 0 for order 0; 1-8, 9-10, 11-12, 13-16, 17-20, 21-24 tokens are 1 to 13.
uint32_t length_bucket(uint32_t k);

class MixingWeights {
 public:
  MixingWeights();

  static uint32_t cell(Source source, uint32_t k_bucket, uint32_t n_bucket, uint32_t u_bucket,
                       bool longest, bool root) {
    return ((((source * kLengths + k_bucket) * kCounts + n_bucket) * kDistincts + u_bucket) * 2 + longest) * 2 +
           root;
  }
  float weight(uint32_t cell) const { return cells_[cell].weight; }

  // Moves the cell towards `responsibility`, the posterior probability that this context and not
  // a shorter one explains the true token. The rate decays to .01, so old evidence fades.
  void learn(uint32_t cell, float responsibility);

  static constexpr uint32_t kLengths = 14, kCounts = 6, kDistincts = 4;

 private:
  struct Cell {
    float weight;
    uint32_t updates;
  };
  std::vector<Cell> cells_;
};

constexpr uint32_t kFeatures = 18;
constexpr uint32_t kPadded = 20;  // feature arrays, the rest zero: a multiple of the lanes of a sum

class Correction {
 public:
  Correction();
  // The logit of the corrected probability.
  float score(const float* features, bool root) const;
  // One step of stochastic gradient descent on the log loss, at the rate of begin_update().
  void begin_update(bool root);
  void learn(const float* features, bool root, float probability, bool happened);

 private:
  float weights_[2][kPadded];
  uint32_t updates_[2] = {0, 0};
  float rate_ = 0;
};

}  // namespace sam
