// SPDX-License-Identifier: Apache-2.0
// The tile instructions in plain C++, bit for bit: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2,
// LDTILECFG, TILELOADD, TILESTORED, TILEZERO, TDPBF16PS. What is an invalid-opcode exception there stops the program here.
#pragma once

#include <cstring>

#include "base/check.h"
#include "base/numbers.h"
#include "kernels/tile_unit.h"

namespace motet::MOTET_TARGET {
namespace {

/// Subnormals are zeros of their sign (DAZ).
[[maybe_unused]] inline float without_subnormal(float v) {
  return __builtin_fabsf(v) < 0x1p-126f ? __builtin_copysignf(0.0f, v) : v;
}
/// a x b + c with one rounding; a result that is below 2^-126 once rounded to 24 bits is zero (FTZ). `rounded` to 2^-126 may have
/// come from below it: such a sum has few enough bits to be exact in double.
[[maybe_unused]] inline float flushed_fma(float a, float b, float c) {
  const float rounded = __builtin_fmaf(a, b, c);
  if (__builtin_fabsf(rounded) == 0x1p-126f) {
    const double exact = static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c);
    if (__builtin_fabs(exact) < 0x1p-126 * (1 - 0x1p-25)) return __builtin_copysignf(0.0f, rounded);
  }
  return without_subnormal(rounded);
}

class TileModel {
 public:
  void configure(const TileConfig& config) {
    MOTET_CHECK(config.palette == 1 && config.start_row == 0);
    for (int t = 0; t < kTiles; ++t)
      MOTET_CHECK(config.rows[t] <= kRows && config.row_bytes[t] <= kBytes, "tile %d: %d rows of %d bytes", t, config.rows[t],
                  config.row_bytes[t]);
    config_ = config;
    configured_ = true;
    std::memset(tiles_, 0, sizeof tiles_);
  }
  void release() { configured_ = false; }
  template <int T>
  void zero() {
    used<T>();
    std::memset(tiles_[T], 0, sizeof tiles_[T]);
  }
  template <int T>
  void load(const void* rows, std::int64_t stride) {
    zero<T>();
    for (int r = 0; r < config_.rows[T]; ++r)
      std::memcpy(tiles_[T][r], static_cast<const std::byte*>(rows) + r * stride, config_.row_bytes[T]);
  }
  template <int T>
  void store(void* rows, std::int64_t stride) {
    used<T>();
    for (int r = 0; r < config_.rows[T]; ++r)
      std::memcpy(static_cast<std::byte*>(rows) + r * stride, tiles_[T][r], config_.row_bytes[T]);
  }
  /// Even and odd products of a row are summed apart, in order of k, by fp32 FMA with DAZ and FTZ; then the two, then C.
  template <int C, int A, int B>
  void dot() {
    used<C>(), used<A>(), used<B>();
    static_assert(C != A && C != B && A != B);
    MOTET_CHECK(config_.rows[C] == config_.rows[A] && config_.row_bytes[C] == config_.row_bytes[B] &&
                    config_.row_bytes[A] == 4 * config_.rows[B],
                "shapes of tiles %d, %d, %d", C, A, B);
    for (int m = 0; m < config_.rows[C]; ++m) {
      float sums[2][kBytes / 4] = {};
      for (int k = 0; k < config_.row_bytes[A] / 4; ++k)
        for (int odd = 0; odd < 2; ++odd) {
          const float a = element(A, m, 2 * k + odd);
          for (int n = 0; n < config_.row_bytes[C] / 4; ++n)
            sums[odd][n] = flushed_fma(a, element(B, k, 2 * n + odd), sums[odd][n]);
        }
      for (int n = 0; n < config_.row_bytes[C] / 4; ++n) {
        float c;
        std::memcpy(&c, tiles_[C][m] + 4 * n, 4);
        c = flushed_fma(1, without_subnormal(c), flushed_fma(1, sums[0][n], sums[1][n]));
        std::memcpy(tiles_[C][m] + 4 * n, &c, 4);
      }
    }
  }

 private:
  static constexpr int kTiles = 8, kRows = 16, kBytes = 64;
  template <int T>
  void used() const {
    static_assert(T >= 0 && T < kTiles);
    MOTET_CHECK(configured_ && config_.rows[T] > 0 && config_.row_bytes[T] > 0, "tile %d is not configured", T);
  }
  float element(int tile, int row, int i) const {
    return without_subnormal(bf16_to_f32(load_unaligned<std::uint16_t>(tiles_[tile][row] + 2 * i)));
  }

  TileConfig config_;
  bool configured_ = false;
  alignas(64) std::byte tiles_[kTiles][kRows][kBytes] = {};
};

}  // namespace
}  // namespace motet::MOTET_TARGET
