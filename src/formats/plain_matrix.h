// SPDX-License-Identifier: Apache-2.0
// What the plain halves of the format files share: walking a view, laying out an encoded matrix, checking scales.
#pragma once

#include "formats/format.h"

namespace motet {

/// Values of formats that store whole bytes per element, at any strides.
template <class ValueAt>
void decode_elements(const WeightView& view, std::int64_t row, std::int64_t col, std::int64_t count, double* out,
                     ValueAt value_at) noexcept {
  const std::byte* code = view.codes + row * view.row_stride + col * view.col_stride;
  for (std::int64_t i = 0; i < count; ++i) out[i] = value_at(code + i * view.col_stride);
}

/// [rows, cols] row-major codes of `bytes` each, no scales.
template <class StoreValue>
void encode_elements(const float* values, std::int64_t rows, std::int64_t cols, std::int64_t bytes, EncodedMatrix& out,
                     StoreValue store_value) {
  out.codes.assign(static_cast<std::size_t>(rows * cols * bytes), std::byte{0});
  out.scales.clear();
  for (std::int64_t i = 0; i < rows * cols; ++i) store_value(values[i], out.codes.data() + i * bytes);
  out.view = {.codes = out.codes.data(), .rows = rows, .cols = cols, .row_stride = cols * bytes, .col_stride = bytes};
}

/// Codes packed two to a byte along k, one scale byte per `block` columns, both row-major.
inline void lay_out_packed(std::int64_t rows, std::int64_t cols, std::int64_t block, DType scale_dtype, EncodedMatrix& out) {
  const std::int64_t row_bytes = (cols + 1) / 2, blocks = (cols + block - 1) / block;
  out.codes.assign(static_cast<std::size_t>(rows * row_bytes), std::byte{0});
  out.scales.assign(static_cast<std::size_t>(rows * blocks), std::byte{0});
  out.view = {.codes = out.codes.data(),
              .rows = rows,
              .cols = cols,
              .row_stride = row_bytes,
              .col_stride = 0,
              .scales = out.scales.data(),
              .scale_dtype = scale_dtype,
              .scale_row_stride = blocks,
              .scale_col_stride = 1,
              .block_rows = 1,
              .block_cols = block};
}

/// Code of an element packed two to a byte along k, low nibble first.
inline int nibble(const WeightView& view, std::int64_t row, std::int64_t col) noexcept {
  const int byte = static_cast<int>(view.codes[row * view.row_stride + col / 2]);
  return col % 2 == 0 ? byte & 15 : byte >> 4;
}
inline void set_nibble(EncodedMatrix& out, std::int64_t row, std::int64_t col, int code) {
  out.codes[static_cast<std::size_t>(row * out.view.row_stride + col / 2)] |=
      static_cast<std::byte>(col % 2 == 0 ? code : code << 4);
}

/// The E2M1 values by code, for the exact decoders.
inline constexpr double kE2m1Values[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};

inline float largest_magnitude(const float* values, std::int64_t count) noexcept {
  float largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float magnitude = values[i] < 0 ? -values[i] : values[i];
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

/// "scale 0xff (NaN) at row 3, block 7"
std::string value_at_block(std::string_view what, std::int64_t row, std::int64_t block);
/// Why block scales cannot be read as a packed format needs them, or nothing.
std::optional<std::string> check_packed_scales(const WeightView& view, std::string_view format, DType dtype, std::int64_t block);
/// The rule that a tensor scale breaks, or nothing.
std::optional<std::string> check_tensor_scale(double scale);

}  // namespace motet
