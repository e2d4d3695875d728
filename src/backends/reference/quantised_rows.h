// SPDX-License-Identifier: Apache-2.0
// mxfp8 rows of one slot whose scales lie in the layout that a backend's products read (L6): flat, or swizzled 128x4 with every
// slot's rows in tiles of their own. Owns nothing, allocates nothing.
#pragma once

#include "formats/activation/encode.h"
#include "motet/plan.h"

namespace motet {

struct QuantisedRows {
  std::uint8_t* codes = nullptr;        ///< [rows, stored] E4M3
  E8m0* scales = nullptr;               ///< of this slot, in `layout`
  Layout layout = Layout::flat_scales;  ///< flat_scales or swizzled_128x4
  std::int64_t rows = 0, valid = 0, stored = 0;

  std::int64_t groups() const noexcept { return ceil_div(stored, kMxfp8Block); }
  /// What a product reads: the code times the scale at the place where `layout` has it.
  double at(std::int64_t row, std::int64_t column) const noexcept;
};

/// Where the scales of `slot` begin in an area of all slots; first_row holds prefix sums.
std::int64_t first_scale(Layout layout, const std::int64_t* first_row, std::int64_t slot, std::int64_t groups) noexcept;

/// Encodes fp32 rows that lie `stride` bytes apart and puts their scales into the layout. Columns from `valid` to `stored` become
/// zeros and are not read. `linear` [rows, groups] is where scales are made before they are swizzled; not used for flat scales,
/// which are the same bytes.
void quantise(const std::byte* x, std::int64_t stride, E8m0* linear, const QuantisedRows& to) noexcept;

}  // namespace motet
