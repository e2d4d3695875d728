// SPDX-License-Identifier: Apache-2.0
#include "formats/activation/scale_layout.h"

#include <cstring>

#include "base/check.h"

namespace motet {
namespace {

/// Count of the swizzled side; ends the program when the two sides do not describe the same scales.
template <class A, class B>
std::int64_t check_same_scales(const LinearScales<A>& linear, const SwizzledScales128x4<B>& swizzled) noexcept {
  std::int64_t rows = 0;
  for (const std::int64_t expert : swizzled.expert_rows) MOTET_CHECK(checked_add(rows, expert, &rows));
  MOTET_CHECK(linear.rows == rows && linear.groups == swizzled.groups, "linear [%lld, %lld], swizzled [%lld, %lld]",
              static_cast<long long>(linear.rows), static_cast<long long>(linear.groups), static_cast<long long>(rows),
              static_cast<long long>(swizzled.groups));
  const std::optional<std::int64_t> count = swizzled_128x4_count(swizzled.expert_rows, swizzled.groups);
  MOTET_CHECK(count.has_value());
  return *count;
}

/// Calls visit(linear index, swizzled index) for every valid scale.
template <class Visit>
void for_each_scale(std::span<const std::int64_t> expert_rows, std::int64_t groups, Visit visit) noexcept {
  const std::int64_t tile_row = ceil_div(groups, 4) * 512;  // bytes of 128 rows
  std::int64_t linear = 0, begin = 0;
  for (const std::int64_t rows : expert_rows) {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t group = 0; group < groups; ++group) visit(linear++, begin + swizzled_128x4_offset(row, group, groups));
    }
    begin += ceil_div(rows, 128) * tile_row;
  }
}

template <class Scale>
void swizzle(LinearScales<const Scale> from, SwizzledScales128x4<Scale> to) noexcept {
  const std::int64_t count = check_same_scales(from, to);
  if (count > 0) std::memset(to.data, 0, static_cast<std::size_t>(count));
  for_each_scale(to.expert_rows, to.groups,
                 [&](std::int64_t linear, std::int64_t swizzled) { to.data[swizzled] = from.data[linear]; });
}

template <class Scale>
void unswizzle(SwizzledScales128x4<const Scale> from, LinearScales<Scale> to) noexcept {
  check_same_scales(to, from);
  for_each_scale(from.expert_rows, from.groups,
                 [&](std::int64_t linear, std::int64_t swizzled) { to.data[linear] = from.data[swizzled]; });
}

}  // namespace

std::optional<std::int64_t> swizzled_128x4_count(std::span<const std::int64_t> expert_rows, std::int64_t groups) noexcept {
  std::int64_t stored_groups = 0, total = 0;
  if (!checked_round_up(groups, 4, &stored_groups)) return std::nullopt;
  for (const std::int64_t rows : expert_rows) {
    std::int64_t stored_rows = 0, count = 0;
    if (!checked_round_up(rows, 128, &stored_rows) || !checked_mul(stored_rows, stored_groups, &count) ||
        !checked_add(total, count, &total)) {
      return std::nullopt;
    }
  }
  return total;
}

void linear_to_swizzled_128x4(LinearScales<const E8m0> from, SwizzledScales128x4<E8m0> to) noexcept { swizzle(from, to); }
void linear_to_swizzled_128x4(LinearScales<const E4m3> from, SwizzledScales128x4<E4m3> to) noexcept { swizzle(from, to); }
void swizzled_128x4_to_linear(SwizzledScales128x4<const E8m0> from, LinearScales<E8m0> to) noexcept { unswizzle(from, to); }
void swizzled_128x4_to_linear(SwizzledScales128x4<const E4m3> from, LinearScales<E4m3> to) noexcept { unswizzle(from, to); }

}  // namespace motet
