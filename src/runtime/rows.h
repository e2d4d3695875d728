// SPDX-License-Identifier: Apache-2.0
// Rows of the caller's matrices (bf16, f16, f32) as fp32 values, and back with one rounding.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "base/numbers.h"
#include "motet/types.h"

namespace motet {

/// Rows [first, first + count), which are rows of the matrix.
inline ConstMatrix rows_of(const ConstMatrix& matrix, std::int64_t first, std::int64_t count) noexcept {
  return {static_cast<const std::byte*>(matrix.data) + first * matrix.cols * bytes_of(matrix.dtype), matrix.dtype, count,
          matrix.cols};
}
inline Matrix rows_of(const Matrix& matrix, std::int64_t first, std::int64_t count) noexcept {
  return {static_cast<std::byte*>(matrix.data) + first * matrix.cols * bytes_of(matrix.dtype), matrix.dtype, count, matrix.cols};
}

inline bool is_row_dtype(DType dtype) noexcept { return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32; }

/// Calls visit(column, value) for each element of a row, exact. Requires is_row_dtype.
template <class Visit>
void visit_row(const ConstMatrix& matrix, std::int64_t row, Visit&& visit) noexcept {
  const std::int64_t first = row * matrix.cols;
  const auto* bytes = static_cast<const std::byte*>(matrix.data);
  if (matrix.dtype == DType::f32) {
    for (std::int64_t i = 0; i < matrix.cols; ++i) visit(i, load_unaligned<float>(bytes + (first + i) * 4));
  } else if (matrix.dtype == DType::bf16) {
    for (std::int64_t i = 0; i < matrix.cols; ++i) visit(i, bf16_to_f32(load_unaligned<std::uint16_t>(bytes + (first + i) * 2)));
  } else {
    for (std::int64_t i = 0; i < matrix.cols; ++i) visit(i, f16_to_f32(load_unaligned<std::uint16_t>(bytes + (first + i) * 2)));
  }
}

/// Writes one row, each value rounded once to the matrix's dtype, ties to even. Requires is_row_dtype.
inline void store_row(const float* values, const Matrix& matrix, std::int64_t row) noexcept {
  const std::int64_t first = row * matrix.cols;
  auto* bytes = static_cast<std::byte*>(matrix.data);
  if (matrix.dtype == DType::f32) {
    std::memcpy(bytes + first * 4, values, static_cast<std::size_t>(matrix.cols) * 4);
    return;
  }
  const bool bf16 = matrix.dtype == DType::bf16;
  for (std::int64_t i = 0; i < matrix.cols; ++i) {
    const std::uint16_t code = bf16 ? f32_to_bf16(values[i]) : f32_to_f16(values[i]);
    std::memcpy(bytes + (first + i) * 2, &code, 2);
  }
}

}  // namespace motet
