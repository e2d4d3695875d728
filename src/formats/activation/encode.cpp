// SPDX-License-Identifier: Apache-2.0
#include "formats/activation/encode.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/numbers.h"

namespace motet {
namespace {

constexpr std::uint8_t kE4m3NaN = 0x7F, kE8m0NaN = 0xFF;

/// Consecutive values of one row that share a scale; `count` is 0 when all of the group is padding.
struct Group {
  const float* values;
  std::int64_t count;
};

/// Largest magnitude, 0 for none. Magnitudes compare as integers, so that NaN and infinity come out on top.
struct Amax {
  float value;
  bool finite;
};
Amax amax_of(const Group& group) noexcept {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < group.count; ++i) largest = std::max(largest, bits_of_f32(group.values[i]) & 0x7FFFFFFFu);
  return {f32_of_bits(largest), largest < 0x7F800000u};
}

/// Calls encode(group, codes of the group, number of stored columns in it, scale) for every group.
template <class Scale, class Encode>
void for_each_group(const ActivationRows& x, const EncodedRows<Scale>& out, std::int64_t size, std::int64_t codes_per_byte,
                    Encode encode) noexcept {
  const std::int64_t groups = ceil_div(out.stored_cols, size);
  MOTET_CHECK(x.rows >= 0 && x.cols >= 0 && out.stored_cols >= x.cols && out.stored_cols % codes_per_byte == 0,
              "[%lld, %lld] stored %lld", static_cast<long long>(x.rows), static_cast<long long>(x.cols),
              static_cast<long long>(out.stored_cols));
  MOTET_CHECK(out.scales.rows == x.rows && out.scales.groups == groups, "scales [%lld, %lld], wanted [%lld, %lld]",
              static_cast<long long>(out.scales.rows), static_cast<long long>(out.scales.groups), static_cast<long long>(x.rows),
              static_cast<long long>(groups));
  for (std::int64_t row = 0; row < x.rows; ++row) {
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t begin = g * size;
      const Group group{x.values + row * x.cols + std::min(begin, x.cols), std::clamp(x.cols - begin, std::int64_t{0}, size)};
      encode(group, out.codes + (row * out.stored_cols + begin) / codes_per_byte, std::min(size, out.stored_cols - begin),
             out.scales.data[row * groups + g]);
    }
  }
}

/// Codes of x divided by `scale`, then zero padding. A NaN scale gives NaN codes of one sign, whatever the values.
void divide_to_e4m3(const Group& group, float scale, std::uint8_t* codes, std::int64_t stored) noexcept {
  std::fill(codes, codes + stored, std::uint8_t{0});
  if (std::isnan(scale))
    std::fill_n(codes, group.count, kE4m3NaN);
  else
    for (std::int64_t i = 0; i < group.count; ++i) codes[i] = f32_to_e4m3(group.values[i] / scale);
}

float fp8_scale(float amax) noexcept { return std::max(amax, 1e-4f) / 448.0f; }

/// Exponent byte of the smallest power of two >= scale; `scale` is a positive normal number.
std::uint8_t exponent_byte_up(float scale) noexcept {
  const std::uint32_t bits = bits_of_f32(scale);
  return static_cast<std::uint8_t>((bits >> 23) + ((bits & 0x007FFFFFu) != 0));
}

/// Exponent byte of the smallest power of two >= amax / 448, at least 0. 448 = 0.875 * 2^9: compared without dividing.
std::uint8_t mxfp8_scale(float amax) noexcept {
  int exponent = 0;
  const float fraction = std::frexp(amax, &exponent);
  return static_cast<std::uint8_t>(std::max(exponent - 9 + (fraction > 0.875f) + 127, 0));
}

void encode_e2m1(const Group& group, float factor, std::uint8_t* codes, std::int64_t stored) noexcept {
  std::memset(codes, 0, static_cast<std::size_t>(stored / 2));
  for (std::int64_t i = 0; i < group.count; ++i) {
    codes[i / 2] = static_cast<std::uint8_t>(codes[i / 2] | f32_to_e2m1(group.values[i] * factor) << (i % 2 * 4));
  }
}

}  // namespace

void encode_fp8_1x128(const ActivationRows& x, const EncodedRows<float>& out) noexcept {
  for_each_group(x, out, kFp8Group, 1, [](const Group& group, std::uint8_t* codes, std::int64_t stored, float& scale) {
    const Amax amax = amax_of(group);
    scale = amax.finite ? fp8_scale(amax.value) : std::numeric_limits<float>::quiet_NaN();
    divide_to_e4m3(group, scale, codes, stored);
  });
}

void encode_fp8_1x128(const ActivationRows& x, const EncodedRows<E8m0>& out) noexcept {
  for_each_group(x, out, kFp8Group, 1, [](const Group& group, std::uint8_t* codes, std::int64_t stored, E8m0& scale) {
    const Amax amax = amax_of(group);
    const std::uint8_t byte = amax.finite ? exponent_byte_up(fp8_scale(amax.value)) : kE8m0NaN;
    scale = E8m0{byte};
    divide_to_e4m3(group, e8m0_to_f32(byte), codes, stored);
  });
}

void encode_mxfp8(const ActivationRows& x, const EncodedRows<E8m0>& out) noexcept {
  for_each_group(x, out, kMxfp8Block, 1, [](const Group& group, std::uint8_t* codes, std::int64_t stored, E8m0& scale) {
    const Amax amax = amax_of(group);
    const std::uint8_t byte = !amax.finite ? kE8m0NaN : amax.value == 0 ? std::uint8_t{0} : mxfp8_scale(amax.value);
    scale = E8m0{byte};
    const Group nonzero{group.values, amax.value == 0 ? 0 : group.count};  // zeros of either sign are code 0
    divide_to_e4m3(nonzero, e8m0_to_f32(byte), codes, stored);
  });
}

bool nvfp4_input_scale_ok(float input_scale) noexcept { return input_scale >= 0x1p-100f && input_scale <= 0x1p100f; }

void encode_nvfp4(const ActivationRows& x, float input_scale, const EncodedRows<E4m3>& out) noexcept {
  MOTET_CHECK(nvfp4_input_scale_ok(input_scale), "input_scale %g", static_cast<double>(input_scale));
  const float g = 1.0f / input_scale;
  for_each_group(x, out, kNvfp4Block, 2, [g](const Group& group, std::uint8_t* codes, std::int64_t stored, E4m3& scale) {
    const Amax amax = amax_of(group);
    const std::uint8_t byte = amax.finite ? f32_to_e4m3(g * amax.value / 6.0f) : kE4m3NaN;
    scale = E4m3{byte};
    const bool has_codes = byte != 0 && byte != kE4m3NaN;  // 4-bit codes have no NaN: the scale carries it
    encode_e2m1(has_codes ? group : Group{group.values, 0}, has_codes ? 1.0f / (e4m3_to_f32(byte) * (1.0f / g)) : 0.0f, codes,
                stored);
  });
}

}  // namespace motet
