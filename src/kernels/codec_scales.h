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

/// First stored byte of lane l in a step of V vectors.
template <int V>
constexpr int lane_byte(int l) {
  constexpr int kLanes = 4 / V;  // that one vector has in a quad
  return l % 4 / kLanes * 64 + l / 4 * 16 + l % kLanes * 4 * V;
}
/// lane_byte / kUnit for each lane.
template <int V, int kUnit>
struct LaneIndex {
  std::uint8_t at[16];
  constexpr LaneIndex() : at() {
    for (int l = 0; l < 16; ++l) at[l] = static_cast<std::uint8_t>(lane_byte<V>(l) / kUnit);
  }
};
template <int V, int kUnit>
inline constexpr LaneIndex<V, kUnit> kLaneIndex;

/// kE2m1 doubled.
inline constexpr std::int8_t kE2m1Ints[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
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
  static constexpr float kIntUnit = 0.5f;
  static constexpr int kMaxInt = 12, kIntVectors = kBlock / 8;

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

  NibbleTable int_table = nibble_table(kE2m1Ints);
  /// Codes 0 2 4 6 of each dword, then 1 3 5 7.
  [[gnu::always_inline]] void ints(I raw, I* out) const {
    out[0] = nibble_lookup(int_table, raw);
    out[1] = nibble_lookup(int_table, shr<4>(raw));
  }
  /// Scale bytes of the lanes of a step of V vectors (matmul_int_few.h) from stored byte `at` on.
  template <int V>
  MOTET_VEC I lane_bytes(RowScales scales, std::int64_t at) {
    return byte_lanes<64 * V / (kBlock / 2)>(scales + at / (kBlock / 2), kLaneIndex<V, kBlock / 2>.at);
  }
  /// The same in the last, partial step: reads only the scales there are.
  template <int V>
  MOTET_VEC I last_lane_bytes(const WeightView& w, RowScales scales, std::int64_t at) {
    constexpr int kScales = 64 * V / (kBlock / 2);
    std::byte copy[kScales] = {};
    const std::int64_t first = at / (kBlock / 2), blocks = (w.cols + kBlock - 1) / kBlock;
    for (std::int64_t i = 0; i < kScales && first + i < blocks; ++i) copy[i] = scales[first + i];
    return byte_lanes<kScales>(copy, kLaneIndex<V, kBlock / 2>.at);
  }
};

}  // namespace
}  // namespace motet::MOTET_TARGET
