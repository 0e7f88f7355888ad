// SPDX-License-Identifier: Apache-2.0
#include "best_ratios.h"

#include <algorithm>
#include <vector>

namespace reuse {
namespace {

// Classes side by side, so that one instruction serves several: what is summed up for each is independent.
constexpr std::size_t kLanes = 8;

struct Lanes {
  double at[kLanes];
};

}  // namespace

void best_ratios(const double* hazard, const double* widths, std::size_t classes, std::size_t bins, double* out) {
  std::vector<Lanes> hit(bins), late(bins), stay(bins);
  for (std::size_t first = 0; first < classes; first += kLanes) {
    const std::size_t used = std::min(kLanes, classes - first);
    for (std::size_t b = 0; b < bins; ++b) {
      for (std::size_t k = 0; k < kLanes; ++k) {
        const double z = k < used ? hazard[(first + k) * bins + b] : 0.0;
        hit[b].at[k] = z;
        late[b].at[k] = (1 - z / 2) * widths[b];
        stay[b].at[k] = 1 - z;
      }
    }
    for (std::size_t b = 0; b < bins; ++b) {
      Lanes hits, times, alive, best;
      for (std::size_t k = 0; k < kLanes; ++k) {
        const double half = hit[b].at[k] / 2;
        hits.at[k] = half;
        times.at[k] = (1 - half / 2) * (widths[b] / 2);
        alive.at[k] = 1 - half;
        best.at[k] = hits.at[k] / times.at[k];
      }
      for (std::size_t end = b + 1; end < bins; ++end) {
        for (std::size_t k = 0; k < kLanes; ++k) {
          hits.at[k] += alive.at[k] * hit[end].at[k];
          times.at[k] += alive.at[k] * late[end].at[k];
          alive.at[k] *= stay[end].at[k];
          const double ratio = hits.at[k] / times.at[k];
          best.at[k] = best.at[k] < ratio ? ratio : best.at[k];
        }
      }
      for (std::size_t k = 0; k < used; ++k) out[(first + k) * bins + b] = best.at[k];
    }
  }
}

}  // namespace reuse
