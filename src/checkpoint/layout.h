// SPDX-License-Identifier: Apache-2.0
// Where the elements of a stored matrix lie in its tensors. All strides in bytes.
#pragma once

#include <cstdint>

#include "checkpoint/resolve.h"

namespace motet {

/// Rows begin, begin + step, ... (count of them) of a stored matrix: a half is every second row when interleaved.
struct RowSlice {
  std::int64_t begin = 0, step = 1, count = 0;
};

RowSlice gate_rows(GateUpOrder order, std::int64_t intermediate);
RowSlice up_rows(GateUpOrder order, std::int64_t intermediate);

/// Strides between experts, rows and columns; col = 0: packed along the columns.
struct Strides {
  std::int64_t expert = 0, row = 0, col = 0;
};

/// Rows and columns that share a scale in this matrix, all of them spelled out.
struct ScaleBlock {
  std::int64_t rows = 1, cols = 1;
};
ScaleBlock scale_block(const StoredMatrix& matrix);

Strides code_strides(const TensorTable& table, const StoredMatrix& matrix);
/// Of the grid of scales, whose rows and columns are blocks.
Strides scale_strides(const TensorTable& table, const StoredMatrix& matrix);

}  // namespace motet
