// SPDX-License-Identifier: Apache-2.0
// How synthetic weights are drawn: the pattern of exponents, and the draws that formats share. Not for kernel instances.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "formats/format.h"

namespace motet {

/// SplitMix64 (Steele, Lea, Flood 2014): one multiply chain per 8 bytes.
struct SyntheticRandom {
  std::uint64_t state;
  std::uint64_t next() noexcept {
    std::uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
};

/// Exponent offset of a block, -2..2: differs from the left, right, upper and lower neighbour's. Root mean square of
/// 2^offset: 2.06.
inline int synthetic_offset(std::int64_t row, std::int64_t col) noexcept { return static_cast<int>((row * 2 + col) % 5) - 2; }
inline constexpr double kSyntheticOffsetRms = 2.06;
inline constexpr std::int64_t kSyntheticRun = 32;  ///< columns that share an offset in formats without scales

/// `count` codes that lie one after another.
struct SyntheticRow {
  std::byte* out;
  std::int64_t row, count;
  int exponent;  ///< power of two that the values carry; formats with scales ignore it
};

/// Floats from fields: random sign and mantissa (root mean square 1.53), exponent from the pattern.
template <class Code, int kMantissa, int kBias>
void draw_floats(SyntheticRandom& random, const SyntheticRow& row) noexcept {
  constexpr int kBits = 8 * static_cast<int>(sizeof(Code));
  for (std::int64_t begin = 0; begin < row.count; begin += kSyntheticRun) {
    int exponent = row.exponent + synthetic_offset(row.row, begin / kSyntheticRun) + kBias;
    if (exponent < 1) exponent = 1;
    for (std::int64_t col = begin; col < row.count && col < begin + kSyntheticRun; ++col) {
      const std::uint64_t bits = random.next();
      const auto code = static_cast<Code>((bits >> 63) << (kBits - 1) | static_cast<std::uint64_t>(exponent) << kMantissa |
                                          (bits & ((std::uint64_t{1} << kMantissa) - 1)));
      std::memcpy(row.out + col * static_cast<std::int64_t>(sizeof code), &code, sizeof code);
    }
  }
}
inline constexpr double kDrawnFloatsRms = 1.53;

inline void draw_bytes(SyntheticRandom& random, std::byte* out, std::int64_t bytes) noexcept {
  for (std::int64_t i = 0; i < bytes; i += 8) {
    const std::uint64_t bits = random.next();
    std::memcpy(out + i, &bits, static_cast<std::size_t>(bytes - i < 8 ? bytes - i : 8));
  }
}

/// All 16 E2M1 codes alike, two to a byte.
inline void draw_e2m1(SyntheticRandom& random, const SyntheticRow& row) noexcept { draw_bytes(random, row.out, row.count / 2); }
inline constexpr double kDrawnE2m1Rms = 2.93;

/// E4M3 codes with exponent fields 5..8, one in 16 subnormal or zero, never NaN.
inline void draw_e4m3(SyntheticRandom& random, const SyntheticRow& row) noexcept {
  draw_bytes(random, row.out, row.count);
  for (std::int64_t i = 0; i < row.count; ++i) {
    const auto drawn = static_cast<unsigned>(row.out[i]);
    const unsigned field = (drawn & 0x78u) == 0 ? 0u : 5u + ((drawn >> 3) & 3u);
    row.out[i] = static_cast<std::byte>((drawn & 0x87u) | field << 3);
  }
}
inline constexpr double kDrawnE4m3Rms = 1.6;

inline void draw_f32_scale(SyntheticRandom& random, int exponent, std::byte* out) noexcept {
  const auto value = static_cast<float>(std::ldexp(1 + random.uniform() / 2, exponent));
  std::memcpy(out, &value, sizeof value);
}
inline void draw_e8m0_scale(SyntheticRandom&, int exponent, std::byte* out) noexcept { *out = static_cast<std::byte>(127 + exponent); }
inline void draw_e4m3_scale(SyntheticRandom& random, int exponent, std::byte* out) noexcept {
  *out = static_cast<std::byte>((7 + exponent) << 3 | static_cast<int>(random.next() & 7u));
}
inline constexpr double kDrawnE4m3ScalesRms = 1.45;

}  // namespace motet
