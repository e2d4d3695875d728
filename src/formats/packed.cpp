// SPDX-License-Identifier: Apache-2.0
#include "formats/packed.h"

#include <algorithm>
#include <cstring>

#include "base/math.h"
#include "base/numbers.h"

namespace motet {
namespace {

constexpr std::int64_t kPart = 64;
constexpr std::int64_t kGroupCols = 32;  // columns that kernels sum before they apply a scale

bool has_scale_bytes(const FormatFacts& facts) noexcept { return facts.scale_bytes == 1 && facts.block_rows == 1; }

float scale_of(const WeightView& from, std::int64_t row, std::int64_t col) noexcept {
  const std::byte* at = from.scales + row / from.block_rows * from.scale_row_stride + col / from.block_cols * from.scale_col_stride;
  if (from.scale_dtype == DType::f32) return load_unaligned<float>(at);
  if (from.scale_dtype == DType::bf16) return bf16_to_f32(load_unaligned<std::uint16_t>(at));
  return e8m0_to_f32(load_unaligned<std::uint8_t>(at));
}

void pack_scales(const FormatFacts& facts, const WeightView& from, std::int64_t row, std::int64_t rows, std::byte* out) noexcept {
  const std::int64_t blocks = ceil_div(from.cols, from.block_cols);
  if (!has_scale_bytes(facts)) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      const float scale = scale_of(from, row, b * from.block_cols);
      std::memcpy(out + 4 * b, &scale, sizeof scale);
    }
    return;
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::byte* scales = from.scales + (row + r) * from.scale_row_stride;
    for (std::int64_t b = 0; b < blocks; ++b) out[kPanelRows * b + r] = scales[b * from.scale_col_stride];
  }
}

/// Rows whose codes lie one after another: dwords change places.
void pack_rows(const WeightView& from, std::int64_t row_bytes, std::int64_t row, std::int64_t rows, std::byte* out) noexcept {
  const std::int64_t whole = row_bytes / 4;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::byte* codes = from.codes + (row + r) * from.row_stride;
    for (std::int64_t d = 0; d < whole; ++d) std::memcpy(out + 64 * d + 4 * r, codes + 4 * d, 4);
    if (row_bytes > 4 * whole)
      std::memcpy(out + 64 * whole + 4 * r, codes + 4 * whole, static_cast<std::size_t>(row_bytes - 4 * whole));
  }
}

/// Transposed: neighbours along k are far apart.
void pack_columns(const WeightView& from, std::int64_t element, std::int64_t row, std::int64_t rows, std::byte* out) noexcept {
  const std::int64_t per_dword = 4 / element;
  for (std::int64_t k = 0; k < from.cols; ++k) {
    const std::byte* codes = from.codes + row * from.row_stride + k * from.col_stride;
    std::byte* to = out + k / per_dword * 64 + k % per_dword * element;
    for (std::int64_t r = 0; r < rows; ++r) std::memcpy(to + 4 * r, codes + r * from.row_stride, static_cast<std::size_t>(element));
  }
}

}  // namespace

PanelLayout panel_layout(const FormatFacts& facts, std::int64_t cols, std::int64_t block_cols) noexcept {
  PanelLayout layout;
  const std::int64_t row_bytes = ceil_div(cols * static_cast<std::int64_t>(facts.bits_per_value), 8);
  if (facts.scale_bytes > 0) {
    const std::int64_t blocks = ceil_div(cols, block_cols > 0 ? block_cols : std::max<std::int64_t>(cols, 1));
    layout.scale_bytes = round_up(blocks * (has_scale_bytes(facts) ? kPanelRows : std::int64_t{sizeof(float)}), kPart);
  }
  layout.bytes = layout.scale_bytes + ceil_div(row_bytes, 4) * kPart;
  return layout;
}

std::optional<std::string> packing_declined(const FormatFacts& facts, const ProjectionSpec& projection) {
  if (facts.scale_bytes == 0 || has_scale_bytes(facts)) return std::nullopt;
  if (projection.block_rows % kPanelRows == 0 && projection.block_cols % kGroupCols == 0) return std::nullopt;
  return "scale blocks of " + std::to_string(projection.block_rows) + " x " + std::to_string(projection.block_cols) +
         " cross panels of " + std::to_string(kPanelRows) + " rows or groups of " + std::to_string(kGroupCols) + " columns";
}

std::int64_t packed_bytes(const FormatFacts& facts, const ProjectionSpec& projection, std::int64_t rows,
                          std::int64_t cols) noexcept {
  return ceil_div(rows, kPanelRows) * panel_layout(facts, cols, projection.block_cols).bytes;
}

std::int64_t published_bytes(const FormatFacts& facts, const ProjectionSpec& projection, std::int64_t rows,
                             std::int64_t cols) noexcept {
  const auto blocks = [](std::int64_t extent, std::int64_t block) { return block > 0 ? ceil_div(extent, block) : 1; };
  return rows * ceil_div(cols * static_cast<std::int64_t>(facts.bits_per_value), 8) +
         facts.scale_bytes * blocks(rows, projection.block_rows) * blocks(cols, projection.block_cols);
}

void pack_panels(const FormatFacts& facts, const WeightView& from, std::int64_t first, std::int64_t last, std::byte* out,
                 std::int64_t stride) noexcept {
  const PanelLayout layout = panel_layout(facts, from.cols, from.block_cols);
  const auto bits = static_cast<std::int64_t>(facts.bits_per_value);
  for (std::int64_t p = first; p < last; ++p, out += stride) {
    const std::int64_t row = p * kPanelRows, rows = std::min(kPanelRows, from.rows - row);
    std::memset(out, 0, static_cast<std::size_t>(layout.bytes));
    if (layout.scale_bytes > 0) pack_scales(facts, from, row, rows, out);
    if (from.col_stride == 0 || from.col_stride * 8 == bits) {
      pack_rows(from, ceil_div(from.cols * bits, 8), row, rows, out + layout.scale_bytes);
    } else {
      pack_columns(from, bits / 8, row, rows, out + layout.scale_bytes);
    }
  }
}

WeightView packed_view(const WeightView& from, const std::byte* panels, std::int64_t stride) noexcept {
  WeightView view = from;
  view.codes = panels;
  view.panel_bytes = stride;
  view.row_stride = view.col_stride = 0;
  view.scales = nullptr;
  view.scale_row_stride = view.scale_col_stride = 0;
  return view;
}

}  // namespace motet
