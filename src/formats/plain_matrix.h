// SPDX-License-Identifier: Apache-2.0
// What the plain halves of the format files share: whole formats of plain elements, packed layouts, checking scales.
#pragma once

#include <cstring>
#include <type_traits>
#include <utility>

#include "base/numbers.h"
#include "formats/format.h"
#include "formats/synthetic_draw.h"

namespace motet {

/// A format of whole elements without scales, at any strides. Element: `Code` (stored), `value(Code)` exact, `code(float)` rounded.
template <class Element>
struct PlainElements {
  using Code = typename Element::Code;
  static constexpr auto kBytes = static_cast<std::int64_t>(sizeof(Code));

  static void decode(const WeightView& view, std::int64_t row, std::int64_t col, std::int64_t count, double* out) noexcept {
    const std::byte* code = view.codes + row * view.row_stride + col * view.col_stride;
    for (std::int64_t i = 0; i < count; ++i) out[i] = Element::value(load_unaligned<Code>(code + i * view.col_stride));
  }
  static void encode(const float* values, std::int64_t rows, std::int64_t cols, EncodedMatrix& out) {
    out.codes.assign(static_cast<std::size_t>(rows * cols * kBytes), std::byte{0});
    out.scales.clear();
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      const Code code = Element::code(values[i]);
      std::memcpy(out.codes.data() + i * kBytes, &code, sizeof code);
    }
    out.view = {.codes = out.codes.data(), .rows = rows, .cols = cols, .row_stride = cols * kBytes, .col_stride = kBytes};
  }
  static std::optional<std::string> check_values(const WeightView&) { return std::nullopt; }
};

/// `facts`: name, about and relative step; kMantissa and kBias: fields of the element.
template <class Element, int kMantissa, int kBias>
Format plain_format(FormatFacts facts, DType dtype) {
  using Elements = PlainElements<Element>;
  facts.bits_per_value = 8.0 * sizeof(typename Element::Code);
  facts.bytes_per_block = Elements::kBytes;
  using Bits = std::conditional_t<sizeof(typename Element::Code) == 2, std::uint16_t, std::uint32_t>;
  return {.facts = facts,
          .spellings = {{.codes = "weight", .code_dtypes = {dtype}, .stacks = true}},
          .decode = Elements::decode,
          .encode = Elements::encode,
          .check_values = Elements::check_values,
          .synthetic = {.codes = draw_floats<Bits, kMantissa, kBias>, .codes_rms = kDrawnFloatsRms}};
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
/// The first scale byte that is `limit` or above, as row and block; nothing when all of them are below. One byte per block.
std::optional<std::pair<std::int64_t, std::int64_t>> find_scale_from(const WeightView& view, std::byte limit);
/// The rule that a tensor scale breaks, or nothing.
std::optional<std::string> check_tensor_scale(double scale);

}  // namespace motet
