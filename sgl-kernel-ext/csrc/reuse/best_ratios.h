// SPDX-License-Identifier: Apache-2.0
// The index of the learned eviction policy from its hazards.
#pragma once

#include <cstddef>

namespace reuse {

// `hazard` and `out` are [classes, bins], `widths` [bins]. out[c, b] is the best ratio of expected hits to expected
// time over all bins at which to give up a page of class c that is in the middle of bin b: the Gittins index of its
// remaining lifetime. The same operations in the same order as the Python version, so equal to the last bit.
// classes * bins^2 / 2 steps.
void best_ratios(const double* hazard, const double* widths, std::size_t classes, std::size_t bins, double* out);

}  // namespace reuse
