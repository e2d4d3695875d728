// SPDX-License-Identifier: Apache-2.0
// What kernels make of single codes and scales: every value, NaN, the ends of the range, block sizes of any configuration.
#include <cmath>

#include "formats/kernel_testing.h"

namespace motet {
namespace {

using testing::Activations;
using testing::first_wrong;
using testing::Layout;
using testing::run;
using testing::TestMatrix;
using testing::Which;

class KernelCodes : public testing::KernelCase {};

/// A packed or 8-bit matrix that holds every code under every legal scale byte (8-bit: in rows of 32 codes, under scale 1, NaN
/// left out).
std::unique_ptr<TestMatrix> every_code(const Format& format) {
  const bool packed = is_packed(format.facts);
  EncodedMatrix encoded;
  const std::vector<float> ones(255 * 32, 1.0f);
  format.encode(ones.data(), 1, 32, encoded);
  const std::int64_t rows = !packed ? 8 : encoded.view.scale_dtype == DType::f8_e8m0 ? 255 : 127;
  format.encode(ones.data(), rows, 32, encoded);
  encoded.view.tensor_scale = 1;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < encoded.view.row_stride; ++i) {
      const std::int64_t code = packed ? i % 8 * 0x22 + 0x10 : r * 32 + i;
      encoded.codes[static_cast<std::size_t>(r * encoded.view.row_stride + i)] =
          static_cast<std::byte>(!packed && (code & 0x7F) == 0x7F ? 0 : code);
    }
    for (std::int64_t b = 0; packed && b < encoded.view.scale_row_stride; ++b)
      encoded.scales[static_cast<std::size_t>(r * encoded.view.scale_row_stride + b)] = static_cast<std::byte>(r);
  }
  const float one = 1.0f;
  for (std::size_t i = 0; !packed && i + sizeof one <= encoded.scales.size(); i += sizeof one)
    std::memcpy(encoded.scales.data() + i, &one, sizeof one);
  return testing::lay_out(std::move(encoded), Layout::rows);
}

TEST_P(KernelCodes, DecodeEveryCodeUnderEveryScaleExactly) {  // one-hot activations hand out the values
  if (format().facts.bits_per_value > 8) return;
  const auto matrix = every_code(format());
  const std::int64_t rows = matrix->view.rows;
  Activations x(set(), 32, 32, 1);
  const float one = testing::exact_one(set().arithmetic);
  for (std::int64_t t = 0; t < 32; ++t)
    for (std::int64_t k = 0; k < 32; ++k) x.set_value(t, k, t == k ? one : 0.0f);
  for (const Which which : testing::ways(set())) {
    for (std::int64_t t = 0; t < 32; t += 8) {
      const std::vector<float> out = testing::run_all(set(), which, matrix->view, x, t, 8);
      for (std::int64_t n = 0; n < rows; ++n) {
        double row[32];
        format().decode(matrix->view, n, 0, 32, row);
        for (std::int64_t i = 0; i < 8; ++i)
          ASSERT_EQ(out[static_cast<std::size_t>(i * rows + n)], static_cast<float>(row[t + i] * static_cast<double>(one)))
              << "row " << n << ", column " << t + i;
      }
    }
  }
}

TEST_P(KernelCodes, ANanCodeReachesItsOwnRowOnly) {
  if (is_packed(format().facts)) return;  // E2M1 has no NaN
  const std::int64_t rows = 37, cols = 96, row = 5, col = 50;
  const Activations x(set(), 7, cols, 6);
  for (const Layout layout : testing::kLayouts) {
    for (const std::byte nan : {std::byte{0xFF}, std::byte{0x7F}}) {
      if (nan == std::byte{0x7F} && format().facts.bits_per_value > 8) continue;
      const auto matrix = testing::make_matrix(format(), rows, cols, layout, 4);
      const WeightView& view = matrix->view;
      const std::int64_t byte = col * format().facts.bytes_per_block,
                         panel_codes = panel_layout(format().facts, cols, view.block_cols).scale_bytes;
      for (const Which which : testing::ways(set())) {
        if (which == Which::few && !set().few_reads(view)) continue;
        const std::int64_t tokens = which == Which::few ? 2 : 7;
        std::byte* code = matrix->codes->data() + (view.panel_bytes > 0 ? panel_codes + byte / 4 * 64 + row * 4 + byte % 4
                                                                        : row * view.row_stride + col * view.col_stride);
        const std::vector<std::byte> kept(code, code + format().facts.bytes_per_block);
        const std::vector<float> clean = run(set(), which, view, 0, rows, x, 0, tokens);
        std::fill_n(code, kept.size(), nan);
        const std::vector<float> got = run(set(), which, view, 0, rows, x, 0, tokens);
        std::copy(kept.begin(), kept.end(), code);
        for (std::size_t i = 0; i < got.size(); ++i) {
          if (static_cast<std::int64_t>(i) % rows == row)
            EXPECT_TRUE(std::isnan(got[i])) << testing::name_of(layout) << ", token " << i / 37;
          else
            EXPECT_EQ(got[i], clean[i]);
        }
      }
    }
  }
}

TEST_P(KernelCodes, StayExactAtTheEndsOfTheScaleRange) {
  if (format().facts.name != "mxfp4") return;
  const std::int64_t rows = 40, cols = 96;
  const auto matrix = testing::make_matrix(format(), rows, cols, Layout::rows, 12);
  const int ends[] = {0x00, 0x01, 0x02, 0x7F, 0xFC, 0xFD, 0xFE};
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t b = 0; b < 3; ++b)
      matrix->scales->data()[r * 3 + b] = static_cast<std::byte>(r % 5 == 0 ? 0x7F + b : ends[(r + (r % 2) * b) % 7]);
  Activations x(set(), 13, cols, 13);
  for (std::int64_t t = 0; t < 13; ++t)
    for (std::int64_t k = 0; k < cols; ++k)
      x.set_value(t, k, static_cast<float>(x.value(t, k)) * (t % 2 == 0 ? 0x1p-40f : 0x1p40f));
  for (const Which which : testing::ways(set())) {
    for (std::int64_t t = 0; t < 13; ++t) {
      const std::vector<float> out = run(set(), which, matrix->view, 0, rows, x, t, 1);
      std::vector<double> row(96), values(96);
      for (std::int64_t k = 0; k < cols; ++k) values[static_cast<std::size_t>(k)] = x.value(t, k);
      for (std::int64_t n = 0; n < rows; ++n) {
        format().decode(matrix->view, n, 0, cols, row.data());
        double sum = 0, magnitude = 0;
        for (std::size_t k = 0; k < row.size(); ++k) {
          sum += row[k] * values[k];
          magnitude += std::fabs(row[k] * values[k]);
        }
        if (magnitude > 0x1p127) continue;  // beyond fp32
        EXPECT_LE(std::fabs(static_cast<double>(out[static_cast<std::size_t>(n)]) - sum),
                  testing::accumulation_bound(cols) * magnitude +
                      testing::encoding_bound(x.arithmetic, row.data(), values.data(), cols) + 0x1p-149)
            << "row " << n << ", token " << t << (which == Which::few ? ", few" : ", many");
      }
    }
  }
}

TEST_P(KernelCodes, ReadFp8BlocksOfAnyConfiguredSize) {
  if (format().facts.name != "fp8_block") return;
  struct Blocks {
    std::int64_t block_rows, block_cols, rows = 90, cols = 208;
  };
  for (const auto& [block_rows, block_cols, rows, cols] :
       {Blocks{128, 128}, {32, 64}, {7, 48}, {1, 208}, {90, 1000}, {3, 16}, {16, 400, 20, 1000}, {16, 5008, 20, 9232}}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f8_e8m0}) {
      const auto matrix = testing::make_matrix(format(), rows, cols, Layout::rows, 21);
      const std::int64_t grid_rows = (rows + block_rows - 1) / block_rows, grid_cols = (cols + block_cols - 1) / block_cols;
      const std::int64_t bytes = dtype == DType::f32 ? 4 : dtype == DType::bf16 ? 2 : 1;
      std::vector<std::byte> scales(static_cast<std::size_t>(grid_rows * grid_cols * bytes));
      for (std::int64_t i = 0; i < grid_rows * grid_cols; ++i) {
        const float scale = std::ldexp(1.0f, static_cast<int>(i * 5 % 9) - 4);
        const std::uint16_t half = f32_to_bf16(scale);
        const auto byte = static_cast<std::uint8_t>(127 + std::ilogb(scale));
        std::memcpy(scales.data() + i * bytes,
                    dtype == DType::f32    ? static_cast<const void*>(&scale)
                    : dtype == DType::bf16 ? static_cast<const void*>(&half)
                                           : &byte,
                    static_cast<std::size_t>(bytes));
      }
      testing::GuardedBytes guarded(scales);
      WeightView view = matrix->view;
      view.scales = guarded.data();
      view.scale_dtype = dtype;
      view.scale_row_stride = grid_cols * bytes;
      view.scale_col_stride = bytes;
      view.block_rows = block_rows;
      view.block_cols = block_cols;
      ASSERT_FALSE(format().check_values(view).has_value());
      const Activations x(set(), 14, cols, 22);
      const testing::Truth truth(format(), view, x, 14);
      for (const Which which : testing::ways(set()))
        EXPECT_EQ(first_wrong(truth, 14, testing::run_all(set(), which, view, x, 0, 14)), "") << block_rows << " x " << block_cols;
    }
  }
}

TEST_P(KernelCodes, SplitActivationsReachTheEndsOfTheirRange) {
  if (set().arithmetic != KernelArithmetic::bf16x2_tile || format().facts.name != "bf16") return;
  EncodedMatrix encoded;
  const std::vector<float> ones(32, 1.0f);
  format().encode(ones.data(), 1, 32, encoded);
  constexpr float kMost = std::numeric_limits<float>::max(), kLeast = std::numeric_limits<float>::min();
  const float values[] = {kMost,       -kMost,   0x1.FEFFFEp127f, 0x1.FFp127f, 0x1.234566p0f, kLeast, -0x1.FFFFFEp-126f,
                          0x1.8p-117f, 0x1p-149f};
  const auto tokens = static_cast<std::int64_t>(std::size(values));
  Activations x(set(), tokens + 1, 32, 1);
  for (std::int64_t t = 0; t <= tokens; ++t)
    for (std::int64_t k = 0; k < 32; ++k)
      x.set_value(t, k, k != 5 ? 0.0f : t < tokens ? values[t] : std::numeric_limits<float>::infinity());
  const std::vector<float> out = run(set(), Which::many, encoded.view, 0, 1, x, 0, tokens + 1);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const double value = static_cast<double>(values[t]), largest = 0x1.FFFEp127;  // of which both parts are finite
    EXPECT_LE(std::fabs(static_cast<double>(out[static_cast<std::size_t>(t)]) - std::clamp(value, -largest, largest)),
              std::fabs(value) * 0x1p-17 + 0x1p-126)
        << value;
  }
  EXPECT_FALSE(std::isfinite(out.back()));
}

INSTANTIATE_TEST_SUITE_P(All, KernelCodes, ::testing::ValuesIn(testing::all_cases()), testing::case_name);

}  // namespace
}  // namespace motet
