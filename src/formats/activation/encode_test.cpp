// SPDX-License-Identifier: Apache-2.0
#include "formats/activation/encode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace motet {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kRoundoff = 0x1p-24;  ///< of one fp32 operation

// ---------------------------------------------------------------- oracle: tables and double precision, no code of encode.cpp

/// Magnitudes of a sign-exponent-fraction format by code; E4M3FN's last code is NaN.
Doubles magnitudes(int codes, int fraction_bits, int bias) {
  Doubles table;
  for (int code = 0; code < codes; ++code) {
    const int exponent = code >> fraction_bits, fraction = code & ((1 << fraction_bits) - 1);
    const double steps = std::ldexp(1.0, fraction_bits);
    table.push_back(exponent == 0 ? std::ldexp(fraction / steps, 1 - bias) : std::ldexp(1 + fraction / steps, exponent - bias));
  }
  return table;
}
const Doubles kE4m3 = magnitudes(127, 3, 7);
const Doubles kE2m1 = magnitudes(8, 1, 1);

/// Nearest code, ties to the even one, saturating; the sign bit is that of the table's size.
int nearest(const Doubles& table, int sign_bit, double x) {
  int best = 0;
  for (int code = 1; code < static_cast<int>(table.size()); ++code) {
    const double closer = std::fabs(table[best] - std::fabs(x)) - std::fabs(table[code] - std::fabs(x));
    if (closer > 0 || (closer == 0 && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(x) ? sign_bit : 0);
}
double value_of(const Doubles& table, int sign_bit, int code) {
  const int magnitude = code & (sign_bit - 1);
  if (magnitude >= static_cast<int>(table.size())) return std::nan("");
  return code & sign_bit ? -table[magnitude] : table[magnitude];
}
double e8m0(int byte) { return byte == 255 ? std::nan("") : std::ldexp(1.0, byte - 127); }
double f32(double x) { return static_cast<float>(x); }

enum class Scheme { fp8, fp8_power_of_two, mxfp8, nvfp4 };
constexpr Scheme kSchemes[] = {Scheme::fp8, Scheme::fp8_power_of_two, Scheme::mxfp8, Scheme::nvfp4};
std::int64_t group_of(Scheme s) { return s == Scheme::mxfp8 ? 32 : s == Scheme::nvfp4 ? 16 : 128; }

/// What one group becomes: `scale` is the stored value, `unit` what codes are multiplied by.
struct Group {
  double scale = 0, unit = 0;
  std::vector<int> codes;
};

Group oracle(Scheme scheme, const Doubles& x, float input_scale) {
  double amax = 0;
  for (double v : x) amax = std::max(amax, std::fabs(v));
  Group g;
  double divisor = 0;
  if (scheme == Scheme::fp8 || scheme == Scheme::fp8_power_of_two) {
    g.scale = f32(std::max(amax, f32(1e-4)) / 448);
    if (scheme == Scheme::fp8_power_of_two) g.scale = std::exp2(std::ceil(std::log2(g.scale)));
    divisor = g.unit = g.scale;
  } else if (scheme == Scheme::mxfp8) {
    g.scale = g.unit = amax == 0 ? 0x1p-127 : std::exp2(std::max(-127.0, std::ceil(std::log2(amax / 448))));
    divisor = amax == 0 ? 0 : g.scale;
  } else {
    const double encode = f32(1 / static_cast<double>(input_scale));
    const int byte = nearest(kE4m3, 128, f32(f32(encode * amax) / 6));
    g.scale = kE4m3[byte];
    g.unit = g.scale * input_scale;
    divisor = g.scale;
    const double factor = g.scale == 0 ? 0 : f32(1 / f32(g.scale * f32(1 / encode)));
    for (double v : x) g.codes.push_back(g.scale == 0 ? 0 : nearest(kE2m1, 8, f32(v * factor)));
    return g;
  }
  for (double v : x) g.codes.push_back(divisor == 0 ? 0 : nearest(kE4m3, 128, f32(v / divisor)));
  return g;
}

// ---------------------------------------------------------------- running the encoders

constexpr float kInputScale = 0.55f;  ///< holds up to 448 * 6 * 0.55 = 1478

struct Encoded {
  Scheme scheme = Scheme::fp8;
  std::int64_t rows = 0, cols = 0, stored = 0, groups = 0;
  Bytes codes;  ///< guard byte behind
  Floats float_scales;
  Bytes byte_scales;  ///< guard byte behind
  int code(std::int64_t row, std::int64_t col) const {
    if (scheme != Scheme::nvfp4) return codes[row * stored + col];
    return codes[(row * stored + col) / 2] >> (col % 2 * 4) & 15;
  }
  double scale(std::int64_t row, std::int64_t group) const {
    const std::int64_t i = row * groups + group;
    if (scheme == Scheme::fp8) return float_scales[i];
    return scheme == Scheme::nvfp4 ? value_of(kE4m3, 128, byte_scales[i]) : e8m0(byte_scales[i]);
  }
  /// `shift` groups off, to prove that a wrong place shows.
  double decode(std::int64_t row, std::int64_t col, std::int64_t shift = 0) const {
    const double s = scale(row, (col / group_of(scheme) + shift) % groups);
    if (scheme == Scheme::nvfp4) return value_of(kE2m1, 8, code(row, col)) * s * kInputScale;
    return value_of(kE4m3, 128, code(row, col)) * s;
  }
};

Encoded encode(Scheme scheme, const Floats& x, std::int64_t rows, std::int64_t cols, std::int64_t stored,
               float input_scale = kInputScale) {
  Encoded e{scheme, rows, cols, stored, (stored + group_of(scheme) - 1) / group_of(scheme), {}, {}, {}};
  e.codes.assign(rows * stored / (scheme == Scheme::nvfp4 ? 2 : 1) + 1, 0xEE);
  e.float_scales.assign(rows * e.groups + 1, -7.0f);
  e.byte_scales.assign(rows * e.groups + 1, 0xEE);
  const ActivationRows in{rows > 0 ? x.data() : nullptr, rows, cols};
  auto* e8m0_scales = reinterpret_cast<E8m0*>(e.byte_scales.data());
  auto* e4m3_scales = reinterpret_cast<E4m3*>(e.byte_scales.data());
  switch (scheme) {
    case Scheme::fp8:
      encode_fp8_1x128(in, {e.codes.data(), stored, LinearScales<float>{e.float_scales.data(), rows, e.groups}});
      break;
    case Scheme::fp8_power_of_two:
      encode_fp8_1x128(in, {e.codes.data(), stored, LinearScales<E8m0>{e8m0_scales, rows, e.groups}});
      break;
    case Scheme::mxfp8:
      encode_mxfp8(in, {e.codes.data(), stored, {e8m0_scales, rows, e.groups}});
      break;
    case Scheme::nvfp4:
      encode_nvfp4(in, input_scale, {e.codes.data(), stored, {e4m3_scales, rows, e.groups}});
      break;
  }
  EXPECT_EQ(e.codes.back(), 0xEE);
  EXPECT_EQ(e.float_scales.back(), -7.0f);
  EXPECT_EQ(e.byte_scales.back(), 0xEE);
  return e;
}

/// Gaussian values whose exponent differs from group to group of 16 by 1 to 3.
Floats random_rows(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Floats x;
  for (std::int64_t i = 0; i < rows * cols; ++i)
    x.push_back(std::ldexp(normal(random), static_cast<int>((i % cols / 16 * 5 + i / cols) % 7) - 3));
  return x;
}

constexpr std::int64_t kRowCounts[] = {0, 1, 2, 16, 127, 128, 129};
constexpr std::int64_t kColCounts[] = {1, 15, 16, 17, 31, 32, 33, 127, 128, 129, 288, 736};

// ---------------------------------------------------------------- worked values

TEST(ActivationEncoder, Nvfp4WorkedBlock) {
  const Floats x = {0, 0.1f, -0.2f, 0.3f, 0.5f, -0.75f, 1, 1.25f, -1.5f, 2, 2.5f, -3, 0.05f, 0.9f, -0.6f, 1.7f};
  const Encoded e = encode(Scheme::nvfp4, x, 1, 16, 16, 6.0f / (448 * 6));
  EXPECT_EQ(e.byte_scales[0], 0x76);
  EXPECT_EQ(Bytes(e.codes.begin(), e.codes.end() - 1), (Bytes{0x00, 0x19, 0xb2, 0x44, 0x6d, 0xf6, 0x40, 0x5a}));
  const Encoded zero = encode(Scheme::nvfp4, {0, -0.0f}, 1, 2, 16);
  EXPECT_EQ(zero.byte_scales[0], 0x00);
  EXPECT_EQ(Bytes(zero.codes.begin(), zero.codes.end() - 1), Bytes(8, 0));
}

TEST(ActivationEncoder, Mxfp8WorkedExponentsRoundUp) {
  const struct {
    float amax;
    int scale, code;
  } worked[] = {{448, 0x7f, 0x7e}, {449, 0x80, 0x76}, {500, 0x80, 0x78}, {512, 0x80, 0x78},
                {1, 0x77, 0x78},   {0, 0, 0},         {-0.0f, 0, 0}};
  for (const auto& w : worked) {
    const Encoded e = encode(Scheme::mxfp8, {w.amax}, 1, 1, 32);
    EXPECT_EQ(e.byte_scales[0], w.scale) << w.amax;
    EXPECT_EQ(e.codes[0], w.code) << w.amax;
  }
}

TEST(ActivationEncoder, Fp8GroupWorkedCodes) {
  const Floats x = {0.5f, -3, 5, 0};
  const Encoded plain = encode(Scheme::fp8, x, 1, 4, 4), power = encode(Scheme::fp8_power_of_two, x, 1, 4, 4);
  EXPECT_EQ(plain.float_scales[0], 5.0f / 448.0f);
  EXPECT_EQ(Bytes(plain.codes.begin(), plain.codes.end() - 1), (Bytes{0x63, 0xf8, 0x7e, 0x00}));
  EXPECT_EQ(power.scale(0, 0), 0.015625);
  EXPECT_EQ(Bytes(power.codes.begin(), power.codes.end() - 1), (Bytes{0x60, 0xf4, 0x7a, 0x00}));
}

TEST(ActivationEncoder, Fp8ZeroGroupKeepsThePositiveFloor) {
  EXPECT_EQ(encode(Scheme::fp8, {0, 0}, 1, 2, 2).float_scales[0], 1e-4f / 448.0f);
  EXPECT_EQ(encode(Scheme::fp8_power_of_two, {0, 0}, 1, 2, 2).scale(0, 0), 0x1p-22);
}

TEST(ActivationEncoder, PowerOfTwoScalesOfExactPowersAreNotRaised) {
  for (int e = -12; e < 100; ++e) {
    const Floats x = {std::ldexp(448.0f, e), std::ldexp(std::nextafter(448.0f, 449.0f), e)};
    EXPECT_EQ(encode(Scheme::fp8_power_of_two, {x[0]}, 1, 1, 1).scale(0, 0), std::ldexp(1.0, e));
    EXPECT_EQ(encode(Scheme::fp8_power_of_two, {x[1]}, 1, 1, 1).scale(0, 0), std::ldexp(1.0, e + 1));
    EXPECT_EQ(encode(Scheme::mxfp8, {x[0]}, 1, 1, 1).scale(0, 0), std::ldexp(1.0, e));
    EXPECT_EQ(encode(Scheme::mxfp8, {x[1]}, 1, 1, 1).scale(0, 0), std::ldexp(1.0, e + 1));
  }
}

TEST(ActivationEncoder, Mxfp8HoldsTheSmallestAndLargestValues) {
  for (float v : {0x1p-149f, 0x1p-130f, 0x1p-126f, 0x1p-118f, 3.4e38f}) {
    const Encoded e = encode(Scheme::mxfp8, {v, -v}, 1, 2, 2);
    const Group g = oracle(Scheme::mxfp8, {v, -v}, 1);
    EXPECT_EQ(e.scale(0, 0), g.scale) << v;
    EXPECT_EQ(e.codes[0], g.codes[0]) << v;
    EXPECT_EQ(e.codes[1], g.codes[1]) << v;
  }
}

TEST(ActivationEncoder, Nvfp4BeyondTheCalibratedRangeSaturatesScaleAndElement) {
  const Encoded e = encode(Scheme::nvfp4, {1e6f, -1e6f, 3e38f, 0}, 1, 4, 4);
  EXPECT_EQ(e.byte_scales[0], 0x7e);
  EXPECT_EQ(e.codes[0], 0xf7);
  EXPECT_EQ(e.codes[1], 0x07);
  EXPECT_EQ(encode(Scheme::nvfp4, {3e38f}, 1, 1, 2, 0x1p-100f).codes[0], 0x07);
  EXPECT_EQ(encode(Scheme::nvfp4, {1e-30f}, 1, 1, 2, 0x1p100f).byte_scales[0], 0);
}

TEST(ActivationEncoder, Nvfp4KnowsItsInputScales) {
  EXPECT_TRUE(nvfp4_input_scale_ok(0x1p-100f) && nvfp4_input_scale_ok(1.0f) && nvfp4_input_scale_ok(0x1p100f));
  for (float bad : {0.0f, -1.0f, 0x1p-101f, 0x1p101f, kInf, kNaN}) EXPECT_FALSE(nvfp4_input_scale_ok(bad)) << bad;
  EXPECT_DEATH(encode(Scheme::nvfp4, {1}, 1, 1, 2, 0.0f), "input_scale 0");
}

// ---------------------------------------------------------------- every shape against the oracle

TEST(L6, EncodersMatchTheOracleForEveryRowCountAndRaggedColumns) {
  for (Scheme scheme : kSchemes) {
    const std::int64_t size = group_of(scheme);
    for (std::int64_t rows : kRowCounts) {
      for (std::int64_t cols : kColCounts) {
        const std::int64_t stored = (cols + 1) / 2 * 2;
        const Floats x = random_rows(rows, cols, 31 * rows + cols);
        const Encoded e = encode(scheme, x, rows, cols, stored);
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t begin = 0; begin < cols; begin += size) {
            const std::int64_t end = std::min(cols, begin + size);
            const Group g = oracle(scheme, Doubles(x.begin() + r * cols + begin, x.begin() + r * cols + end), kInputScale);
            ASSERT_EQ(e.scale(r, begin / size), g.scale)
                << int(scheme) << " [" << rows << ", " << cols << "] row " << r << " col " << begin;
            for (std::int64_t c = begin; c < end; ++c)
              ASSERT_EQ(e.code(r, c), g.codes[c - begin]) << int(scheme) << " row " << r << " col " << c;
          }
        }
      }
    }
  }
}

/// Groups whose values, and for nvfp4 in turn whose scales, lie on midpoints between codes: there the order of operations decides.
TEST(ActivationEncoder, TiesFollowTheWrittenOrderOfOperations) {
  for (Scheme scheme : kSchemes) {
    const bool fp4 = scheme == Scheme::nvfp4;
    const Doubles& table = fp4 ? kE2m1 : kE4m3;
    for (float input_scale : {kInputScale, 0.3f, 1.0f / 3, 0.9f}) {
      for (int step = 1; step < 400; ++step) {
        const int code = step % 126;
        double amax = step * (fp4 ? 0.6875 : 1.1875);
        if (fp4 && step % 2 == 0) amax = (kE4m3[code] + kE4m3[code + 1]) / 2 * 6 * input_scale;
        Doubles x = {f32(amax)};
        for (std::size_t c = table.size() - 1; c > 0 && x.size() < 16; --c) {
          x.push_back(f32((table[c] + table[c - 1]) / 2 * amax / table.back()));
        }
        const auto cols = static_cast<std::int64_t>(x.size());
        const Encoded e = encode(scheme, Floats(x.begin(), x.end()), 1, cols, 16, input_scale);
        const Group g = oracle(scheme, x, input_scale);
        ASSERT_EQ(e.scale(0, 0), g.scale) << int(scheme) << " amax " << amax << " input_scale " << input_scale;
        for (std::int64_t c = 0; c < cols; ++c)
          ASSERT_EQ(e.code(0, c), g.codes[c]) << int(scheme) << " amax " << amax << " at " << c;
      }
    }
  }
}

TEST(L4, StoredColumnsBeyondTheValidOnesEncodeAsZeros) {
  for (Scheme scheme : kSchemes) {
    const std::int64_t cols = 200, stored = 768;
    const Floats x = random_rows(2, cols, 5);
    Floats wide;
    for (std::int64_t r = 0; r < 2; ++r) {
      wide.insert(wide.end(), x.begin() + r * cols, x.begin() + (r + 1) * cols);
      wide.resize((r + 1) * stored, 0.0f);
    }
    const Encoded padded = encode(scheme, x, 2, cols, stored), whole = encode(scheme, wide, 2, stored, stored);
    EXPECT_EQ(padded.codes, whole.codes);
    EXPECT_EQ(padded.byte_scales, whole.byte_scales);
    EXPECT_EQ(padded.float_scales, whole.float_scales);
    for (std::int64_t c = cols; c < stored; ++c) EXPECT_EQ(padded.decode(1, c), 0.0);
  }
}

// ---------------------------------------------------------------- error bound

/// |decoded - x| for one value: half a step of its code (relative where normal, absolute below), and the fp32 roundings of scale
/// and quotient. A rounded-down NVFP4 scale may cut 1/17 of |x|, less than half a step of E2M1.
double bound(Scheme scheme, double x, double unit) {
  const double relative = scheme == Scheme::nvfp4 ? 0x1p-2 : 0x1p-4;
  const double absolute = scheme == Scheme::nvfp4 ? 0x1p-2 : 0x1p-10;
  return std::max(relative * std::fabs(x), absolute * unit) * (1 + 8 * kRoundoff) + 8 * kRoundoff * std::fabs(x);
}

/// Whether all values decode within the bound, read with scales `shift` groups off.
bool within_bound(const Encoded& e, const Floats& x, std::int64_t shift = 0) {
  for (std::int64_t r = 0; r < e.rows; ++r) {
    for (std::int64_t c = 0; c < e.cols; ++c) {
      const double unit = e.scale(r, c / group_of(e.scheme)) * (e.scheme == Scheme::nvfp4 ? kInputScale : 1);
      if (!(std::fabs(e.decode(r, c, shift) - x[r * e.cols + c]) <= bound(e.scheme, x[r * e.cols + c], unit))) return false;
    }
  }
  return true;
}

TEST(ActivationEncoder, DecodesWithinHalfAStepAndWrongPlacesDoNot) {
  for (Scheme scheme : kSchemes) {
    Floats x = random_rows(3, 768, 77);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = std::ldexp(x[i], static_cast<int>(i % 768 / 128));  // exponents differ between groups of 128 too
    Encoded e = encode(scheme, x, 3, 768, 768);
    EXPECT_TRUE(within_bound(e, x)) << int(scheme);
    EXPECT_FALSE(within_bound(e, x, 1)) << int(scheme) << ": scales one group off pass";
    const auto largest = std::max_element(x.begin(), x.end()) - x.begin();
    e.codes[scheme == Scheme::nvfp4 ? largest / 2 : largest] ^= scheme == Scheme::nvfp4 ? 0x22 : 0x08;
    EXPECT_FALSE(within_bound(e, x)) << int(scheme) << ": a flipped code passes";
  }
}

// ---------------------------------------------------------------- NaN, infinity

TEST(ActivationEncoder, NonFiniteValueMakesItsWholeGroupNaNAndNoOther) {
  for (Scheme scheme : kSchemes) {
    for (float bad : {kNaN, -kNaN, kInf, -kInf}) {
      const std::int64_t size = group_of(scheme), cols = 3 * size;
      Floats x = random_rows(2, cols, 3);
      const Encoded clean = encode(scheme, x, 2, cols, cols);
      x[cols + size + 2] = bad;
      const Encoded e = encode(scheme, x, 2, cols, cols);
      for (std::int64_t r = 0; r < 2; ++r) {
        for (std::int64_t c = 0; c < cols; ++c) {
          const bool hit = r == 1 && c / size == 1;
          EXPECT_TRUE(hit ? std::isnan(e.decode(r, c)) : e.decode(r, c) == clean.decode(r, c))
              << int(scheme) << " row " << r << " col " << c;
        }
      }
      EXPECT_TRUE(std::isnan(e.scale(1, 1)));
      if (scheme != Scheme::fp8) {
        EXPECT_EQ(e.byte_scales[4], scheme == Scheme::nvfp4 ? 0x7F : 0xFF);
      }
      for (std::int64_t c = size; c < 2 * size; ++c) EXPECT_EQ(e.code(1, c), scheme == Scheme::nvfp4 ? 0 : 0x7F);
    }
  }
}

TEST(ActivationEncoderDeathTest, ScalesOfAnotherExtentEndTheProgram) {
  const Floats x(64, 1.0f);
  Bytes codes(64), scales(2);
  auto* data = reinterpret_cast<E8m0*>(scales.data());
  EXPECT_DEATH(encode_mxfp8({x.data(), 1, 64}, {codes.data(), 64, {data, 1, 1}}), "scales \\[1, 1\\], wanted \\[1, 2\\]");
  EXPECT_DEATH(encode_mxfp8({x.data(), 1, 64}, {codes.data(), 32, {data, 1, 1}}), "stored 32");
}

}  // namespace
}  // namespace motet
