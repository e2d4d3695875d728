// SPDX-License-Identifier: Apache-2.0
#include "backends/reference/quantised_rows.h"

#include "base/check.h"
#include "base/numbers.h"

namespace motet {

double QuantisedRows::at(std::int64_t row, std::int64_t column) const noexcept {
  const std::int64_t group = column / kMxfp8Block;
  const std::int64_t place = layout == Layout::flat_scales ? row * groups() + group : swizzled_128x4_offset(row, group, groups());
  return static_cast<double>(e4m3_to_f32(codes[row * stored + column])) *
         static_cast<double>(e8m0_to_f32(static_cast<std::uint8_t>(scales[place])));
}

std::int64_t first_scale(Layout layout, const std::int64_t* first_row, std::int64_t slot, std::int64_t groups) noexcept {
  if (layout == Layout::flat_scales) return first_row[slot] * groups;
  std::int64_t tiles = 0;
  for (std::int64_t s = 0; s < slot; ++s) tiles += ceil_div(first_row[s + 1] - first_row[s], 128);
  return tiles * 128 * round_up(groups, 4);
}

void quantise(const std::byte* x, std::int64_t stride, E8m0* linear, const QuantisedRows& to) noexcept {
  MOTET_CHECK(to.layout == Layout::flat_scales || to.layout == Layout::swizzled_128x4, "layout %d", static_cast<int>(to.layout));
  const std::int64_t groups = to.groups();
  const bool swizzled = to.layout == Layout::swizzled_128x4;
  const LinearScales<E8m0> made{swizzled ? linear : to.scales, to.rows, groups};
  for (std::int64_t row = 0; row < to.rows; ++row)
    encode_mxfp8({reinterpret_cast<const float*>(x + row * stride), 1, to.valid},
                 {to.codes + row * to.stored, to.stored, {made.data + row * groups, 1, groups}});
  if (swizzled) linear_to_swizzled_128x4(made, {to.scales, {&to.rows, 1}, groups});
}

}  // namespace motet
