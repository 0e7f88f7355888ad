// SPDX-License-Identifier: Apache-2.0
// Logarithm and exponential for single precision, from bit manipulation and short polynomials.
//
// The drafts of all tensor-parallel ranks must be equal, and the C library may pick another
// implementation on another processor. These use only IEEE operations, whose results are fixed,
// and the build forbids contraction into fused operations.
#pragma once

#include <cstdint>
#include <cstring>

namespace sam {

// log2(x) for finite x > 0; absolute error below 1e-5.
inline float log2_fast(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const float exponent = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
  bits = (bits & 0x007fffffu) | 0x3f800000u;
  float m;
  std::memcpy(&m, &bits, sizeof m);
  // atanh series around sqrt(2): log2(m) = 0.5 + 2/ln2 * (t + t^3/3 + t^5/5).
  const float t = (m - 1.41421356f) / (m + 1.41421356f);
  const float t2 = t * t;
  return exponent + 0.5f + t * (2.88539008f + t2 * (0.96179669f + t2 * 0.57707802f));
}

// 2^x for x in [-126, 126] (clipped); relative error below 1e-5.
inline float exp2_fast(float x) {
  if (x < -126.0f) x = -126.0f;
  if (x > 126.0f) x = 126.0f;
  const int32_t whole = static_cast<int32_t>(x < 0 ? x - 0.5f : x + 0.5f);
  const float f = x - static_cast<float>(whole);  // within half a unit: five terms are enough
  const float p =
      1.0f +
      f * (0.69314718f + f * (0.24022651f + f * (0.05550411f + f * (0.00961813f + f * 0.00133336f))));
  const uint32_t bits = static_cast<uint32_t>(whole + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return scale * p;
}

inline float logit(float p) {
  if (p < 1e-6f) p = 1e-6f;
  if (p > 1.0f - 1e-6f) p = 1.0f - 1e-6f;
  return 0.69314718f * log2_fast(p / (1.0f - p));
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exp2_fast(-1.44269504f * x)); }

}  // namespace sam
