// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/layout.h"

#include "base/dtype.h"
#include "base/math.h"

namespace motet {

RowSlice gate_rows(GateUpOrder order, std::int64_t intermediate) {
  return order == GateUpOrder::interleaved ? RowSlice{0, 2, intermediate} : RowSlice{0, 1, intermediate};
}

RowSlice up_rows(GateUpOrder order, std::int64_t intermediate) {
  if (order == GateUpOrder::interleaved) return {1, 2, intermediate};
  return {order == GateUpOrder::halves ? intermediate : 0, 1, intermediate};
}

Strides code_strides(const TensorTable& table, const StoredMatrix& matrix) {
  const TensorInfo& codes = table[matrix.tensors.codes];
  const std::int64_t expert = codes.bytes / matrix.experts;
  if (matrix.tensors.format == "mxfp4" || matrix.tensors.format == "nvfp4") return {expert, matrix.cols / 2, 0};
  const std::int64_t element = bytes_of(codes.dtype);
  if (matrix.transposed) return {expert, element, matrix.rows * element};
  return {expert, matrix.cols * element, element};
}

Strides scale_strides(const TensorTable& table, const StoredMatrix& matrix) {
  if (matrix.tensors.scales == kNoTensor) return {};
  const TensorInfo& scales = table[matrix.tensors.scales];
  const std::int64_t element = bytes_of(scales.dtype);
  return {scales.bytes / matrix.experts, ceil_div(matrix.cols, matrix.tensors.block_cols) * element, element};
}

}  // namespace motet
