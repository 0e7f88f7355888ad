// SPDX-License-Identifier: Apache-2.0
// Views of tensors whose element type or strides the caller chooses. No ownership.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace cpu_ops {

// A vector or matrix of 32- or 64-bit signed integers with any strides (in elements).
class Ints {
 public:
  Ints() = default;
  Ints(void* data, bool wide, size_t rows, size_t cols, int64_t row_stride, int64_t col_stride)
      : data_(data), wide_(wide), rows_(rows), cols_(cols), row_stride_(row_stride), col_stride_(col_stride) {}

  size_t rows() const { return rows_; }
  size_t cols() const { return cols_; }
  // Elements of a vector, which is one row.
  size_t size() const { return rows_ * cols_; }

  int64_t operator()(size_t row, size_t col) const {
    const int64_t at = offset(row, col);
    return wide_ ? static_cast<const int64_t*>(data_)[at] : static_cast<const int32_t*>(data_)[at];
  }
  // Element `i` in row-major order.
  int64_t operator[](size_t i) const { return rows_ == 1 ? (*this)(0, i) : (*this)(i / cols_, i % cols_); }

  void set(size_t row, size_t col, int64_t value) const {
    const int64_t at = offset(row, col);
    if (wide_) {
      static_cast<int64_t*>(data_)[at] = value;
    } else {
      static_cast<int32_t*>(data_)[at] = static_cast<int32_t>(value);
    }
  }
  void set(size_t i, int64_t value) const {
    if (rows_ == 1) {
      set(0, i, value);
    } else {
      set(i / cols_, i % cols_, value);
    }
  }

 private:
  int64_t offset(size_t row, size_t col) const {
    return static_cast<int64_t>(row) * row_stride_ + static_cast<int64_t>(col) * col_stride_;
  }

  void* data_ = nullptr;
  bool wide_ = true;
  size_t rows_ = 0, cols_ = 0;
  int64_t row_stride_ = 0, col_stride_ = 0;
};

}  // namespace cpu_ops
