// SPDX-License-Identifier: Apache-2.0
// Packed residence: a weight matrix laid out anew in panels of 16 rows, K-major, so that a vector holds the same columns of 16
// rows and a panel is one stream. Codes and scales keep their published bytes; only their places change.
//
// A panel, every part padded to 64 bytes with zero bytes:
//   scales   one byte per (block, row): byte (b, r) at 16 b + r                     (formats with a scale byte per row and block)
//            or one fp32 per block of columns, the same for all 16 rows             (formats whose blocks hold 16 rows or more)
//   codes    dword (d, r) at 64 d + 4 r: the d-th 4 stored bytes of row r           (1, 2, 4 or 8 columns)
// Rows past the last are zero bytes. Panels of gate and up alternate when both are packed together (panel 2 p is gate's).
// The panels of 2- and 4-byte columns are also what a matrix unit reads as its second operand.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/weight_view.h"
#include "plan/catalog.h"

namespace motet {

inline constexpr std::int64_t kPanelRows = 16;

/// Where the parts of a panel lie, in bytes.
struct PanelLayout {
  std::int64_t scale_bytes = 0;  ///< of the run of scales, padded
  std::int64_t bytes = 0;        ///< of the whole panel
};
/// Pure; the same for every panel of a matrix. `block_cols` is the matrix's (0 = one block).
PanelLayout panel_layout(const FormatFacts& facts, std::int64_t cols, std::int64_t block_cols) noexcept;

/// Why matrices of this format and projection cannot be packed, or nothing.
std::optional<std::string> packing_declined(const FormatFacts& facts, const ProjectionSpec& projection);

/// Bytes of the panels of `rows` rows.
std::int64_t packed_bytes(const FormatFacts& facts, const ProjectionSpec& projection, std::int64_t rows,
                          std::int64_t cols) noexcept;

/// Bytes of codes and scales of the same matrix as published.
std::int64_t published_bytes(const FormatFacts& facts, const ProjectionSpec& projection, std::int64_t rows,
                             std::int64_t cols) noexcept;

/// Writes panels [first, last) of a matrix, rows contiguous along k or transposed; out + (p - first) * stride is panel p's place.
/// Every byte of a panel is written. Thread-safe.
void pack_panels(const FormatFacts& facts, const WeightView& from, std::int64_t first, std::int64_t last, std::byte* out,
                 std::int64_t stride) noexcept;

/// The view of a matrix whose panel 0 lies at `panels` and each next `stride` bytes further.
WeightView packed_view(const WeightView& from, const std::byte* panels, std::int64_t stride) noexcept;

}  // namespace motet
