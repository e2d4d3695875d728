// SPDX-License-Identifier: Apache-2.0
// One logical weight matrix as its published bytes lie in a file. Owns nothing; only 1-byte alignment may be assumed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "motet/types.h"

namespace motet {

/// W [rows, cols]: rows = output axis, cols = reduction axis, y[n] = sum_k W[n,k] x[k].
///
/// Codes of row n, column k lie at `codes + n * row_stride + k * col_stride` for formats of whole bytes per element; formats
/// that pack along k (4-bit) have col_stride 0 and lie at `codes + n * row_stride` from k = 0 on, as their codec says.
/// A transposed matrix ([K,N] in the file) has a small row_stride and a large col_stride; an interleaved half has a doubled
/// row_stride (or row_stride 2 elements when transposed).
/// A packed matrix (panel_bytes > 0, formats/packed.h) lies in panels of 16 rows instead: strides and `scales` are then unused.
/// The scale of (n, k) lies at `scales + (n / block_rows) * scale_row_stride + (k / block_cols) * scale_col_stride`.
struct WeightView {
  const std::byte* codes = nullptr;
  std::int64_t rows = 0, cols = 0;
  std::int64_t row_stride = 0;         ///< bytes
  std::int64_t col_stride = 0;         ///< bytes; 0 = packed along cols
  const std::byte* scales = nullptr;   ///< null = no block scales
  DType scale_dtype = DType::f32;
  std::int64_t scale_row_stride = 0, scale_col_stride = 0;   ///< bytes
  std::int64_t block_rows = 1, block_cols = 1;
  const std::byte* zeros = nullptr;    ///< zero points, for formats that have them
  std::int64_t zero_row_stride = 0;
  std::int64_t panel_bytes = 0;        ///< > 0: panel p, rows 16 p .. 16 p + 15, lies at codes + p * panel_bytes
  double tensor_scale = 1;             ///< multiplies every element, exact in double (NVFP4: weight_scale_2, or 1 / weight_global_scale)
};

/// A bias vector: element i at `data + i * stride`. null data = no bias.
struct BiasView {
  const std::byte* data = nullptr;
  DType dtype = DType::bf16;
  std::int64_t count = 0;
  std::int64_t stride = 0;             ///< bytes
};

/// Gate, up and down of one expert (routed or shared). gate.codes is null when the body has no gate.
struct ExpertView {
  WeightView gate, up, down;
  BiasView gate_bias, up_bias, down_bias;
};

}  // namespace motet
