// SPDX-License-Identifier: Apache-2.0
// Parts that the codecs of several formats share: no scales, one scale byte per block of packed codes, 4-bit values.
#pragma once

#include "base/numbers.h"
#include "base/weight_view.h"
#include "kernels/vec.h"

namespace motet::MOTET_TARGET {
namespace {

/// A codec without block scales.
struct Unscaled {
  static constexpr int kMaxFew = 12;
  static constexpr bool kStepScale = false, kSegments = false, kTensorScale = false;
  static constexpr std::int64_t kFoldBlock = 0;
  struct RowScales {};
  RowScales row_scales(const WeightView&, std::int64_t) const { return {}; }
  MOTET_VEC F step_scale(const WeightView&, RowScales, std::int64_t) { return zero(); }
  MOTET_VEC F last_scale(const WeightView&, RowScales, std::int64_t) { return zero(); }
};

inline constexpr float kE2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

/// E2M1 codes packed along k, low nibble first, one scale byte per kBlock columns at scale_col_stride 1. Lanes<kBlock> turns the
/// scale bytes of 64 stored bytes (128 columns) into lanes.
template <int kBlock, F (*kLanes)(const std::byte*)>
struct PackedE2m1 {
  static constexpr int kPerDword = 8, kElementBytes = 0, kMaxFew = 12;
  static constexpr bool kStepScale = true, kSegments = false;
  static constexpr std::int64_t kFoldBlock = kBlock;
  static constexpr int kStepScales = 128 / kBlock;
  using RowScales = const std::byte*;

  Table16 table = table16(kE2m1);

  MOTET_VEC RowScales row_scales(const WeightView& w, std::int64_t row) { return w.scales + row * w.scale_row_stride; }
  MOTET_VEC F step_scale(const WeightView&, RowScales scales, std::int64_t step) { return kLanes(scales + step * kStepScales); }
  /// Of the last, partial step: reads only the scales there are.
  MOTET_VEC F last_scale(const WeightView& w, RowScales scales, std::int64_t step) {
    std::byte copy[kStepScales] = {};
    const std::int64_t first = step * kStepScales, blocks = (w.cols + kBlock - 1) / kBlock;
    for (std::int64_t i = 0; i < kStepScales && first + i < blocks; ++i) copy[i] = scales[first + i];
    return kLanes(copy);
  }

  template <int S>
  [[gnu::always_inline]] F value(I raw) const {
    return lookup(table, shr<4 * S>(raw));
  }
};

}  // namespace
}  // namespace motet::MOTET_TARGET
