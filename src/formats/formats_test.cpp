// SPDX-License-Identifier: Apache-2.0
// Decoders against the formulas of the number formats (exhaustively for 8 and 4 bits), golden bytes, encoders, value rules.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "base/dtype.h"
#include "base/numbers.h"
#include "formats/test_matrices.h"

namespace motet {
namespace {

/// Sign, exponent and mantissa fields by their formula: e == 0 -> m 2^(1 - bias - mbits), else (1 + m / 2^mbits) 2^(e - bias).
double field_value(int code, int exponent_bits, int mantissa_bits, int bias) {
  const int mantissa = code & ((1 << mantissa_bits) - 1), exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double magnitude = exponent == 0 ? mantissa * std::pow(2.0, 1 - bias - mantissa_bits)
                                         : (1 + mantissa / std::pow(2.0, mantissa_bits)) * std::pow(2.0, exponent - bias);
  return (code >> (mantissa_bits + exponent_bits)) & 1 ? -magnitude : magnitude;
}

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

void expect_same(double got, double wanted) {
  EXPECT_EQ(got, wanted);
  EXPECT_EQ(std::signbit(got), std::signbit(wanted));
}

/// One row of all 16 codes, twice, under one scale byte.
WeightView packed_row(const std::byte* codes, const std::byte* scales, std::int64_t cols, std::int64_t block) {
  return {.codes = codes,
          .rows = 1,
          .cols = cols,
          .row_stride = cols / 2,
          .col_stride = 0,
          .scales = scales,
          .scale_dtype = DType::u8,
          .scale_row_stride = (cols + block - 1) / block,
          .scale_col_stride = 1,
          .block_rows = 1,
          .block_cols = block};
}
const std::vector<std::byte> kAllNibbles =
    bytes_of({0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE, 0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE});

TEST(Mxfp4, DecodesEveryCodeUnderEveryScale) {
  for (int scale = 0; scale < 255; ++scale) {
    const std::vector<std::byte> scales = bytes_of({scale});
    double values[32];
    find_format("mxfp4")->decode(packed_row(kAllNibbles.data(), scales.data(), 32, 32), 0, 0, 32, values);
    for (int i = 0; i < 32; ++i) expect_same(values[i], field_value(i % 16, 2, 1, 1) * std::pow(2.0, scale - 127));
  }
}

TEST(Nvfp4, DecodesEveryCodeUnderEveryScale) {
  for (int scale = 0; scale < 127; ++scale) {
    const std::vector<std::byte> scales = bytes_of({scale, scale});
    WeightView view = packed_row(kAllNibbles.data(), scales.data(), 32, 16);
    view.tensor_scale = 0.375;
    double values[32];
    find_format("nvfp4")->decode(view, 0, 0, 32, values);
    for (int i = 0; i < 32; ++i) expect_same(values[i], field_value(i % 16, 2, 1, 1) * field_value(scale, 4, 3, 7) * 0.375);
  }
}

TEST(Fp8Block, DecodesEveryCode) {
  std::vector<std::byte> codes;
  for (int code = 0; code < 256; ++code) codes.push_back(static_cast<std::byte>(code));
  const float scale = 0.75f;
  std::vector<std::byte> scales(8);
  std::memcpy(scales.data(), &scale, 4);
  std::memcpy(scales.data() + 4, &scale, 4);
  const WeightView view = {.codes = codes.data(),
                           .rows = 1,
                           .cols = 256,
                           .row_stride = 256,
                           .col_stride = 1,
                           .scales = scales.data(),
                           .scale_row_stride = 8,
                           .scale_col_stride = 4,
                           .block_rows = 128,
                           .block_cols = 128};
  double values[256];
  find_format("fp8_block")->decode(view, 0, 0, 256, values);
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F)
      EXPECT_TRUE(std::isnan(values[code]));
    else
      expect_same(values[code], field_value(code, 4, 3, 7) * 0.75);
  }
}

TEST(HalfFormats, DecodeEveryFiniteCode) {
  for (const auto& [name, exponent_bits, mantissa_bits, bias] : {std::tuple{"bf16", 8, 7, 127}, {"f16", 5, 10, 15}}) {
    for (int code = 0; code < 65536; ++code) {
      const std::vector<std::byte> bytes = bytes_of({code & 255, code >> 8});
      const WeightView view = {.codes = bytes.data(), .rows = 1, .cols = 1, .row_stride = 2, .col_stride = 2};
      double value = 0;
      find_format(name)->decode(view, 0, 0, 1, &value);
      const int exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
      if (exponent == (1 << exponent_bits) - 1)
        EXPECT_FALSE(std::isfinite(value));
      else
        ASSERT_EQ(value, field_value(code, exponent_bits, mantissa_bits, bias)) << name << " " << code;
    }
  }
}

// Golden bytes: worked examples of the published layouts.

TEST(Golden, Mxfp4Block) {  // scale 2^-1; byte j holds k = 2j in its low nibble
  const std::vector<std::byte> scales = bytes_of({0x7E});
  double values[16];
  find_format("mxfp4")->decode(packed_row(kAllNibbles.data(), scales.data(), 32, 32), 0, 0, 16, values);
  const double wanted[16] = {0, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, -0.0, -0.25, -0.5, -0.75, -1, -1.5, -2, -3};
  for (int i = 0; i < 16; ++i) expect_same(values[i], wanted[i]);
}

TEST(Golden, Nvfp4Block) {  // scale 0x7E = 448, tensor scale 2^-10
  const std::vector<std::byte> codes = bytes_of({0x21, 0x43, 0x65, 0x07, 0xA9, 0xCB, 0xED, 0x8F}), scales = bytes_of({0x7E});
  WeightView view = packed_row(codes.data(), scales.data(), 16, 16);
  view.tensor_scale = 0x1p-10;
  double values[16];
  find_format("nvfp4")->decode(view, 0, 0, 16, values);
  const double wanted[16] = {0.21875,  0.4375,  0.65625,  0.875,  1.3125,  1.75,  2.625,  0,
                             -0.21875, -0.4375, -0.65625, -0.875, -1.3125, -1.75, -2.625, -0.0};
  for (int i = 0; i < 16; ++i) expect_same(values[i], wanted[i]);
}

TEST(Golden, Fp8BlockOfDeepSeekV3) {  // [192, 320] with scales [2, 3]: blocks of 128 by the configuration, not by the grid
  std::vector<std::byte> codes(192 * 320, std::byte{0});
  const auto put = [&](int row, int col, int code) {
    codes[static_cast<std::size_t>(row * 320 + col)] = static_cast<std::byte>(code);
  };
  put(0, 0, 0x38);
  put(127, 128, 0x40);
  put(128, 255, 0xC4);
  put(191, 319, 0x7E);
  const float scales[6] = {0.5f, 0.25f, 2.0f, 1.0f, 4.0f, 0.125f};
  const WeightView view = {.codes = codes.data(),
                           .rows = 192,
                           .cols = 320,
                           .row_stride = 320,
                           .col_stride = 1,
                           .scales = reinterpret_cast<const std::byte*>(scales),
                           .scale_row_stride = 12,
                           .scale_col_stride = 4,
                           .block_rows = 128,
                           .block_cols = 128};
  const auto at = [&](std::int64_t row, std::int64_t col) {
    double value = 0;
    find_format("fp8_block")->decode(view, row, col, 1, &value);
    return value;
  };
  EXPECT_EQ(at(0, 0), 0.5);
  EXPECT_EQ(at(127, 128), 0.5);
  EXPECT_EQ(at(128, 255), -12.0);
  EXPECT_EQ(at(191, 319), 56.0);
  EXPECT_FALSE(find_format("fp8_block")->check_values(view).has_value());
}

// Encoders.

/// The scale that multiplies the codes around an element; 1 without scales.
double scale_at(const Format& format, const WeightView& view, std::int64_t row, std::int64_t col) {
  if (view.scales == nullptr) return 1;
  const std::byte* p = view.scales + row / view.block_rows * view.scale_row_stride + col / view.block_cols * view.scale_col_stride;
  if (format.facts.scale_bytes > 1) return load_as_f64(view.scale_dtype, p);
  const int code = static_cast<int>(*p);
  return view.scale_dtype == DType::f8_e8m0 ? std::pow(2.0, code - 127) : field_value(code, 4, 3, 7) * view.tensor_scale;
}

/// What rounding may cost: the relative step of a code, or half of the smallest code of the block (2^-25 for f16).
double rounding_bound(const Format& format, double value, double scale) {
  const double smallest = format.facts.bits_per_value == 4 ? 0.5 : format.facts.bits_per_value == 8 ? 0x1p-9 : 0x1p-24;
  return std::fmax(format.facts.relative_step * std::fabs(value), smallest / 2 * scale * (1 + 0x1p-20));
}

TEST(Encode, StaysWithinHalfAStepOfEveryFormat) {
  const std::int64_t rows = 131, cols = 352;
  const std::vector<float> values = testing::values_with_block_exponents(rows, cols, 3);
  for (const Format* format : all_formats()) {
    EncodedMatrix encoded;
    format->encode(values.data(), rows, cols, encoded);
    ASSERT_FALSE(format->check_values(encoded.view).has_value()) << *format->check_values(encoded.view);
    std::vector<double> decoded(static_cast<std::size_t>(cols));
    double worst = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      format->decode(encoded.view, r, 0, cols, decoded.data());
      for (std::int64_t k = 0; k < cols; ++k) {
        const double value = static_cast<double>(values[static_cast<std::size_t>(r * cols + k)]);
        const double error = std::fabs(decoded[static_cast<std::size_t>(k)] - value);
        const double bound = rounding_bound(*format, value, scale_at(*format, encoded.view, r, k));
        ASSERT_LE(error, bound) << format->facts.name << " row " << r << ", column " << k << ": " << value;
        worst = std::fmax(worst, bound > 0 ? error / bound : 0);
      }
    }
    if (format->facts.name == "f32") continue;  // encoding f32 rounds nothing
    EXPECT_GT(worst, 0.9) << format->facts.name << ": the bound is loose, so it would miss a wrong rounding";
  }
}

TEST(Encode, IsExactOnItsOwnValues) {  // decode, encode, decode
  const std::int64_t rows = 40, cols = 160;
  const std::vector<float> values = testing::values_with_block_exponents(rows, cols, 8);
  for (const Format* format : all_formats()) {
    if (has_tensor_scale(*format)) continue;  // its block scales are chosen anew and need not come back
    EncodedMatrix once, twice;
    format->encode(values.data(), rows, cols, once);
    std::vector<double> first(static_cast<std::size_t>(rows * cols)), second(first.size());
    for (std::int64_t r = 0; r < rows; ++r) format->decode(once.view, r, 0, cols, first.data() + r * cols);
    std::vector<float> again(first.begin(), first.end());
    format->encode(again.data(), rows, cols, twice);
    for (std::int64_t r = 0; r < rows; ++r) format->decode(twice.view, r, 0, cols, second.data() + r * cols);
    if (format->facts.scale_bytes > 1) {  // scales such as amax / 448 are rounded: equal within fp32
      for (std::size_t i = 0; i < first.size(); ++i) ASSERT_NEAR(second[i], first[i], std::fabs(first[i]) * 0x1p-22) << i;
    } else {
      EXPECT_EQ(first, second) << format->facts.name;
    }
  }
}

TEST(Encode, ZerosStayZeros) {
  const std::vector<float> zeros(64 * 160, 0.0f);
  for (const Format* format : all_formats()) {
    EncodedMatrix encoded;
    format->encode(zeros.data(), 64, 160, encoded);
    EXPECT_FALSE(format->check_values(encoded.view).has_value()) << format->facts.name;
    double values[160];
    format->decode(encoded.view, 63, 0, 160, values);
    for (const double value : values) EXPECT_EQ(value, 0.0);
  }
}

// Value rules.

struct Spoiled {
  EncodedMatrix matrix;
  const Format* format;
};
Spoiled spoiled(const char* name) {
  Spoiled result = {{}, find_format(name)};
  const std::vector<float> values = testing::values_with_block_exponents(300, 320, 2);
  result.format->encode(values.data(), 300, 320, result.matrix);
  return result;
}
std::string reason(const Spoiled& s) { return s.format->check_values(s.matrix.view).value_or(""); }

TEST(CheckValues, NamesRowAndBlockOfABadScale) {
  Spoiled mx = spoiled("mxfp4");
  mx.matrix.scales[123 * 10 + 7] = std::byte{0xFF};
  EXPECT_EQ(reason(mx), "E8M0 scale 0xff is NaN at row 123, block 7");
  Spoiled nv = spoiled("nvfp4");
  nv.matrix.scales[3 * 20 + 19] = std::byte{0x7F};
  EXPECT_EQ(reason(nv), "E4M3 scale is NaN at row 3, block 19");
  nv.matrix.scales[3 * 20 + 19] = std::byte{0xB8};
  EXPECT_EQ(reason(nv), "E4M3 scale has its sign bit set at row 3, block 19");
  Spoiled fp8 = spoiled("fp8_block");
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::memcpy(fp8.matrix.scales.data() + (2 * 3 + 1) * 4, &bad, 4);
    EXPECT_NE(reason(fp8).find("at row 256, block 1"), std::string::npos) << reason(fp8);
  }
}

TEST(CheckValues, RefusesBadTensorScales) {
  for (const double bad : {0.0, -2.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    Spoiled nv = spoiled("nvfp4");
    nv.matrix.view.tensor_scale = bad;
    EXPECT_NE(reason(nv).find("tensor scale"), std::string::npos);
  }
}

TEST(CheckValues, ReadsNoCodes) {  // a NaN code is its row's business: kernel_codes_test.cpp
  for (const int code : {0x7F, 0xFF}) {
    Spoiled fp8 = spoiled("fp8_block");
    fp8.matrix.codes[17 * 320 + 301] = static_cast<std::byte>(code);
    EXPECT_EQ(reason(fp8), "");
  }
}

TEST(CheckValues, TakesFp8ScalesOfEveryStoredType) {
  for (const DType dtype : {DType::bf16, DType::f8_e8m0}) {
    Spoiled fp8 = spoiled("fp8_block");
    const std::int64_t bytes = bytes_of(dtype), grid = 3 * 3;
    fp8.matrix.scales.assign(static_cast<std::size_t>(grid * bytes), std::byte{0x3F});  // 2^-64; 0.7470703125
    fp8.matrix.view.scales = fp8.matrix.scales.data();
    fp8.matrix.view.scale_dtype = dtype;
    fp8.matrix.view.scale_row_stride = 3 * bytes, fp8.matrix.view.scale_col_stride = bytes;
    EXPECT_EQ(reason(fp8), "");
    std::fill_n(fp8.matrix.scales.end() - bytes, bytes, std::byte{0xFF});
    EXPECT_NE(reason(fp8).find("at row 256, block 2"), std::string::npos) << reason(fp8);
  }
}

TEST(CheckValues, RefusesScalesThatKernelsCannotRead) {
  Spoiled mx = spoiled("mxfp4");
  mx.matrix.view.scale_dtype = DType::f32;
  EXPECT_NE(reason(mx).find("not F32"), std::string::npos) << reason(mx);
  Spoiled nv = spoiled("nvfp4");
  nv.matrix.view.scales = nullptr;
  EXPECT_NE(reason(nv).find("has none"), std::string::npos);
  Spoiled fp8 = spoiled("fp8_block");
  fp8.matrix.view.block_cols = 100;
  EXPECT_NE(reason(fp8).find("multiple of 16 columns"), std::string::npos);
}

TEST(FormatList, NamesAreDistinctAndFound) {
  std::set<std::string_view> names;
  for (const Format* format : all_formats()) {
    EXPECT_TRUE(names.insert(format->facts.name).second);
    EXPECT_EQ(find_format(format->facts.name), format);
    EXPECT_GT(format->facts.relative_step, 0);
    ASSERT_FALSE(format->spellings.empty()) << format->facts.name << ": no checkpoint could hold it";
    for (const Spelling& spelling : format->spellings) {
      EXPECT_FALSE(spelling.codes.empty() || spelling.code_dtypes.empty());
      EXPECT_EQ(spelling.scales.empty(), is_plain(format->facts));
      EXPECT_EQ(spelling.scales.empty(), spelling.scale_dtypes.empty());
      EXPECT_EQ(spelling.tensor_scale.empty(), !has_tensor_scale(*format));
    }
  }
  EXPECT_EQ(find_format("mxfp5"), nullptr);
}

}  // namespace
}  // namespace motet
