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

ScaleBlock scale_block(const StoredMatrix& matrix) {
  const MatrixTensors& tensors = matrix.tensors;
  return {tensors.block_rows > 0 ? tensors.block_rows : matrix.rows, tensors.block_cols > 0 ? tensors.block_cols : matrix.cols};
}

Strides code_strides(const TensorTable& table, const StoredMatrix& matrix) {
  const TensorInfo& codes = table[matrix.tensors.codes];
  const std::int64_t expert = codes.bytes / matrix.experts;
  const FormatFacts& facts = matrix.tensors.built->facts;
  if (is_packed(facts)) return {expert, matrix.cols / facts.values_per_block * facts.bytes_per_block, 0};
  const std::int64_t element = facts.bytes_per_block;
  if (matrix.transposed) return {expert, element, matrix.rows * element};
  return {expert, matrix.cols * element, element};
}

Strides scale_strides(const TensorTable& table, const StoredMatrix& matrix) {
  if (matrix.tensors.scales == kNoTensor) return {};
  const TensorInfo& scales = table[matrix.tensors.scales];
  const std::int64_t element = bytes_of(scales.dtype);
  return {scales.bytes / matrix.experts, ceil_div(matrix.cols, scale_block(matrix).cols) * element, element};
}

}  // namespace motet
