// SPDX-License-Identifier: Apache-2.0
// Layouts of activation scales as types (L6). A layout converts to another only through a function named for it here, so that
// scales in one order cannot be handed to a reader of another. Linear 2-D and flat are two views of the same bytes; only linear
// scales cross a dispatch. Views own nothing; the functions are thread-safe and allocate nothing.
//
// Swizzled 128x4, one byte per scale, as Blackwell's tensor cores, cuBLAS and CUTLASS read them (CUTLASS: atom of shape
// ((32,4),(vec,4)), stride ((16,4),(0,1))). A tile holds 128 rows x 4 groups = 512 bytes; tiles of a row of tiles lie side by side:
//   byte (row, group) = (row / 128) * tiles * 512 + (group / 4) * 512 + (row % 32) * 16 + (row % 128 / 32) * 4 + group % 4
// with tiles = ceil(groups / 4). Rows pad to 128 and groups to 4 with bytes 0. Every expert's rows start a tile of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "base/math.h"

namespace motet {

/// One scale byte: 2^(byte - 127), 0xFF is NaN.
enum class E8m0 : std::uint8_t {};
/// One scale byte: E4M3FN, used non-negative; 0x7F is NaN.
enum class E4m3 : std::uint8_t {};

/// [rows, groups] row-major, no padding. Zero rows keep their groups: [0, groups], data may then be null.
template <class Scale>
struct LinearScales {
  Scale* data = nullptr;
  std::int64_t rows = 0, groups = 0;

  constexpr operator LinearScales<const Scale>() const noexcept requires(!std::is_const_v<Scale>) { return {data, rows, groups}; }
};

/// The bytes of linear scales, one after another, without their extents.
template <class Scale>
struct FlatScales {
  Scale* data = nullptr;
  std::int64_t count = 0;

  constexpr operator FlatScales<const Scale>() const noexcept requires(!std::is_const_v<Scale>) { return {data, count}; }
};

/// Swizzled 128x4: expert e has expert_rows[e] rows in tiles of its own, experts one after another.
template <class Scale>
struct SwizzledScales128x4 {
  static_assert(sizeof(Scale) == 1, "swizzled scales are bytes");
  Scale* data = nullptr;
  std::span<const std::int64_t> expert_rows{};  ///< kept alive by the caller
  std::int64_t groups = 0;

  constexpr operator SwizzledScales128x4<const Scale>() const noexcept requires(!std::is_const_v<Scale>) {
    return {data, expert_rows, groups};
  }
};

/// The same bytes without extents. Requires rows * groups to fit, as it does for scales that exist.
template <class Scale>
constexpr FlatScales<Scale> flat_view(LinearScales<Scale> linear) noexcept {
  return {linear.data, linear.rows * linear.groups};
}

/// The same bytes as [rows, groups], or nothing when they are not rows * groups.
template <class Scale>
constexpr std::optional<LinearScales<Scale>> linear_view(FlatScales<Scale> flat, std::int64_t rows, std::int64_t groups) noexcept {
  std::int64_t count = 0;
  if (rows < 0 || groups < 0 || !checked_mul(rows, groups, &count) || count != flat.count) return std::nullopt;
  return LinearScales<Scale>{flat.data, rows, groups};
}

/// Place of (row, group) from the start of its expert's tiles. 0 <= row, 0 <= group < groups.
constexpr std::int64_t swizzled_128x4_offset(std::int64_t row, std::int64_t group, std::int64_t groups) noexcept {
  return (row / 128) * ceil_div(groups, 4) * 512 + (group / 4) * 512 + (row % 32) * 16 + (row % 128 / 32) * 4 + group % 4;
}

/// Scales (bytes) of these experts together, padding included, or nothing when an extent is negative or the count does not fit.
std::optional<std::int64_t> swizzled_128x4_count(std::span<const std::int64_t> expert_rows, std::int64_t groups) noexcept;

/// Writes every byte of `to`, padding 0. `from` holds the experts' rows one after another: from.rows is the sum of
/// to.expert_rows and from.groups == to.groups (checked). Buffers do not overlap.
void linear_to_swizzled_128x4(LinearScales<const E8m0> from, SwizzledScales128x4<E8m0> to) noexcept;
void linear_to_swizzled_128x4(LinearScales<const E4m3> from, SwizzledScales128x4<E4m3> to) noexcept;
/// The way back; padding is not read.
void swizzled_128x4_to_linear(SwizzledScales128x4<const E8m0> from, LinearScales<E8m0> to) noexcept;
void swizzled_128x4_to_linear(SwizzledScales128x4<const E4m3> from, LinearScales<E4m3> to) noexcept;

}  // namespace motet
