// SPDX-License-Identifier: Apache-2.0
#include "base/numbers.h"

#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace motet {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Independent oracle: the finite value of a code by the textbook formula, in double.
double value_of(unsigned code, int exponent_bits, int mantissa_bits, int bias) {
  const unsigned exponent = (code >> mantissa_bits) & ((1u << exponent_bits) - 1u);
  const double fraction = std::ldexp(static_cast<double>(code & ((1u << mantissa_bits) - 1u)), -mantissa_bits);
  const double sign = (code >> (exponent_bits + mantissa_bits)) & 1u ? -1 : 1;
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias) : sign * std::ldexp(1 + fraction, static_cast<int>(exponent) - bias);
}

/// Independent oracle: the nearest of the ascending `values` (code = index), ties to the even code, saturating.
unsigned nearest(const std::vector<double>& values, double x) {
  unsigned best = 0;
  for (unsigned code = 1; code < values.size(); ++code) {
    const double now = std::abs(values[code] - x), before = std::abs(values[best] - x);
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return best;
}

/// Every value, every midpoint, their float neighbours, and points far outside, of both signs.
std::vector<float> probes_of(const std::vector<double>& values) {
  std::vector<float> probes;
  const auto add = [&](double x) {
    const float f = static_cast<float>(x);
    for (const float y : {f, std::nextafter(f, -1e30f), std::nextafter(f, 1e30f)})
      for (const float z : {y, -y}) probes.push_back(z);
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    add(values[i]);
    if (i > 0) add((values[i] + values[i - 1]) / 2);
  }
  for (const double x : {values.back() * 1.01, values.back() * 2, 1e6, 1e-30, 1e-42}) add(x);
  return probes;
}

bool same_bits(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

TEST(E2M1, DecodesTheTableOfSixteenCodes) {
  const float table[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (std::uint8_t code = 0; code < 8; ++code) {
    EXPECT_TRUE(same_bits(e2m1_to_f32(code), table[code])) << int(code);
    EXPECT_TRUE(same_bits(e2m1_to_f32(code | 8), -table[code])) << int(code);
  }
}

TEST(E2M1, TiesGoToTheEvenCodeAndLargeValuesSaturate) {
  const float in[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, 5.001f, 7, -0.1f};
  const int code[] = {0, 2, 2, 4, 4, 6, 6, 7, 7, 8};
  for (int i = 0; i < 10; ++i) EXPECT_EQ(f32_to_e2m1(in[i]), code[i]) << in[i];
  EXPECT_EQ(f32_to_e2m1(std::numeric_limits<float>::infinity()), 7);
  EXPECT_EQ(f32_to_e2m1(-1e38f), 15);
}

TEST(E2M1, EncodesAllDecisionPointsLikeNearestSearch) {
  std::vector<double> values;
  for (unsigned code = 0; code < 8; ++code) values.push_back(value_of(code, 2, 1, 1));
  for (const float x : probes_of(values))
    EXPECT_EQ(f32_to_e2m1(x), nearest(values, std::abs(x)) | (std::signbit(x) ? 8u : 0u)) << x;
}

TEST(E4M3, DecodesEveryCodeByFormula) {
  for (unsigned code = 0; code < 256; ++code) {
    const float value = e4m3_to_f32(static_cast<std::uint8_t>(code));
    if ((code & 0x7Fu) == 0x7Fu)
      EXPECT_TRUE(std::isnan(value));
    else
      EXPECT_TRUE(same_bits(value, static_cast<float>(value_of(code, 4, 3, 7)))) << code;
  }
  EXPECT_EQ(e4m3_to_f32(0x7E), 448);
  EXPECT_EQ(e4m3_to_f32(0x01), 0.001953125f);
  EXPECT_EQ(e4m3_to_f32(0xC4), -3);
}

TEST(E4M3, EncodesWorkedValues) {
  EXPECT_EQ(f32_to_e4m3(1.0625f), 0x38);
  EXPECT_EQ(f32_to_e4m3(1.1875f), 0x3A);
  EXPECT_EQ(f32_to_e4m3(449), 0x7E);
  EXPECT_EQ(f32_to_e4m3(464), 0x7E);
  EXPECT_EQ(f32_to_e4m3(465), 0x7E);
  EXPECT_EQ(f32_to_e4m3(std::ldexp(1.0f, -10)), 0x00);
  EXPECT_EQ(f32_to_e4m3(-0.0f), 0x80);
  EXPECT_EQ(f32_to_e4m3(-std::numeric_limits<float>::infinity()), 0xFE);
  EXPECT_EQ(f32_to_e4m3(std::numeric_limits<float>::quiet_NaN()) & 0x7F, 0x7F);
}

TEST(E4M3, EncodesAllDecisionPointsLikeNearestSearch) {
  std::vector<double> values;
  for (unsigned code = 0; code < 0x7F; ++code) values.push_back(value_of(code, 4, 3, 7));
  for (const float x : probes_of(values))
    EXPECT_EQ(f32_to_e4m3(x), nearest(values, std::abs(x)) | (std::signbit(x) ? 0x80u : 0u)) << x;
}

TEST(E5M2, DecodesEveryCodeByFormula) {
  for (unsigned code = 0; code < 256; ++code) {
    const float value = e5m2_to_f32(static_cast<std::uint8_t>(code));
    const unsigned magnitude = code & 0x7Fu;
    if (magnitude > 0x7C)
      EXPECT_TRUE(std::isnan(value)) << code;
    else if (magnitude == 0x7C)
      EXPECT_EQ(value, code & 0x80u ? -kInfinity : kInfinity);
    else
      EXPECT_TRUE(same_bits(value, static_cast<float>(value_of(code, 5, 2, 15)))) << code;
  }
}

TEST(E8M0, DecodesEveryCodeByFormula) {
  for (int code = 0; code < 255; ++code)
    EXPECT_EQ(static_cast<double>(e8m0_to_f32(static_cast<std::uint8_t>(code))), std::ldexp(1.0, code - 127)) << code;
  EXPECT_TRUE(std::isnan(e8m0_to_f32(0xFF)));
  EXPECT_EQ(bits_of_f32(e8m0_to_f32(0)), 0x00400000u);  // a shift by 23 would give zero
}

TEST(F16, DecodesEveryCodeByFormula) {
  for (unsigned code = 0; code < 0x10000; ++code) {
    const float value = f16_to_f32(static_cast<std::uint16_t>(code));
    const unsigned magnitude = code & 0x7FFFu;
    if (magnitude > 0x7C00)
      ASSERT_TRUE(std::isnan(value)) << code;
    else if (magnitude == 0x7C00)
      ASSERT_EQ(value, code & 0x8000u ? -kInfinity : kInfinity);
    else
      ASSERT_TRUE(same_bits(value, static_cast<float>(value_of(code, 5, 10, 15)))) << code;
  }
}

TEST(F16, EncodesEveryValueMidpointAndNeighbourToNearestEven) {
  for (unsigned code = 0; code < 0x7C00; ++code) {
    const double low = value_of(code, 5, 10, 15);
    const double high = code + 1 == 0x7C00 ? 65536 : value_of(code + 1, 5, 10, 15);
    const float middle = static_cast<float>((low + high) / 2);
    const unsigned even = code % 2 == 0 ? code : code + 1;
    ASSERT_EQ(f32_to_f16(static_cast<float>(low)), code);
    ASSERT_EQ(f32_to_f16(middle), even) << code;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), code);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 1e6f)), code + 1);
    ASSERT_EQ(f32_to_f16(-middle), even | 0x8000u);
  }
  EXPECT_EQ(f32_to_f16(1e30f), 0x7C00);
  EXPECT_EQ(f32_to_f16(-std::numeric_limits<float>::infinity()), 0xFC00);
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(f32_of_bits(0x7F800001u)))));
  EXPECT_EQ(f32_to_f16(1e-40f), 0);
}

TEST(Bf16, EncodesEveryValueMidpointAndNeighbourToNearestEven) {
  for (unsigned code = 0; code < 0x7F80; ++code) {
    const float middle = f32_of_bits(code << 16 | 0x8000u);
    const unsigned even = code % 2 == 0 ? code : code + 1;
    ASSERT_EQ(f32_to_bf16(bf16_to_f32(static_cast<std::uint16_t>(code))), code);
    ASSERT_EQ(f32_to_bf16(middle), even);
    ASSERT_EQ(f32_to_bf16(f32_of_bits(code << 16 | 0x7FFFu)), code);
    ASSERT_EQ(f32_to_bf16(f32_of_bits(code << 16 | 0x8001u)), code + 1);
    ASSERT_EQ(f32_to_bf16(-middle), even | 0x8000u);
  }
}

TEST(Bf16, KeepsEveryNaNAndInfinity) {
  for (const std::uint32_t bits : {0x7F800001u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu, 0x7FC00000u})
    EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(f32_of_bits(bits))))) << bits;
  EXPECT_EQ(f32_to_bf16(f32_of_bits(0x7F800000u)), 0x7F80);
  EXPECT_EQ(f32_to_bf16(f32_of_bits(0x7F7FFFFFu)), 0x7F80);
}

TEST(Numbers, WorkAtCompileTime) {
  static_assert(f32_to_e2m1(5.0f) == 6 && f32_to_e4m3(449.0f) == 0x7E && f32_to_f16(1.0f) == 0x3C00 && f32_to_bf16(1.0f) == 0x3F80);
  static_assert(e2m1_to_f32(7) == 6 && e4m3_to_f32(0x7E) == 448 && e8m0_to_f32(127) == 1);
}

#if defined(__x86_64__)
TEST(Numbers, GiveTheSameBitsUnderFlushToZeroAndDirectedRounding) {
  const unsigned before = _mm_getcsr();
  std::vector<std::uint32_t> bits[2];
  const volatile float half = 0.5f;
  for (const int forced : {0, 1}) {
    _mm_setcsr(forced ? 0xFFC0u : 0x1F80u);  // flush-to-zero, denormals-are-zero, round towards zero
    const float shrunk = f32_of_bits(0x00800000u) * half;
    EXPECT_EQ(bits_of_f32(shrunk) == 0, forced == 1) << "the flags must be in force";
    for (unsigned code = 0; code < 0x10000; ++code) {
      const auto narrow = static_cast<std::uint8_t>(code);
      const float middle = f32_of_bits(code << 16 | 0x8000u);
      for (const float value :
           {f16_to_f32(static_cast<std::uint16_t>(code)), e4m3_to_f32(narrow), e8m0_to_f32(narrow), e2m1_to_f32(narrow)})
        bits[forced].push_back(bits_of_f32(value));
      bits[forced].push_back(f32_to_bf16(middle) << 16 | f32_to_f16(middle));
      bits[forced].push_back(f32_to_e4m3(middle) << 8 | f32_to_e2m1(middle));
    }
    _mm_setcsr(before);
  }
  EXPECT_TRUE(bits[0] == bits[1]);
}
#endif

}  // namespace
}  // namespace motet
