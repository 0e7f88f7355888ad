// SPDX-License-Identifier: Apache-2.0
// Arena of small arrays whose capacities are powers of two, with one free list a capacity.
#pragma once

#include <cstdint>
#include <cstddef>
#include <vector>

#include "token_map.h"

namespace sam {

template <typename T, int kMaxLog2>
class BlockPool {
 public:
  // Offset of an uninitialised block of 2^log2 elements.
  uint32_t take(int log2) {
    std::vector<uint32_t>& free = free_[log2];
    if (!free.empty()) {
      const uint32_t offset = free.back();
      free.pop_back();
      return offset;
    }
    const size_t offset = data_.size();
    const size_t wanted = offset + (size_t{1} << log2);
    if (wanted > data_.capacity()) data_.reserve(wanted + wanted / 4);
    data_.resize(wanted);
    return static_cast<uint32_t>(offset);
  }

  void give(uint32_t offset, int log2) { free_[log2].push_back(offset); }

  // Moves a block of 2^log2 elements into one of twice the size.
  uint32_t grow(uint32_t offset, int log2) {
    const uint32_t fresh = take(log2 + 1);
    for (uint32_t i = 0; i < (1u << log2); ++i) data_[fresh + i] = data_[offset + i];
    give(offset, log2);
    return fresh;
  }

  T* at(uint32_t offset) { return data_.data() + offset; }
  const T* at(uint32_t offset) const { return data_.data() + offset; }

  size_t bytes() const {
    size_t total = data_.capacity() * sizeof(T);
    for (const auto& free : free_) total += free.capacity() * sizeof(uint32_t);
    return total;
  }

 private:
  std::vector<T> data_;
  std::vector<uint32_t> free_[kMaxLog2 + 1];
};

}  // namespace sam
