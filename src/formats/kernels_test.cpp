// SPDX-License-Identifier: Apache-2.0
// Every format x target x arithmetic x layout against the format's double decoder.
#include <functional>

#include "formats/kernel_testing.h"

namespace motet {
namespace {

using testing::Activations;
using testing::first_wrong;
using testing::Layout;
using testing::run;
using testing::TestMatrix;
using testing::Truth;
using testing::Which;
using testing::widths;

class Kernels : public testing::KernelCase {};

TEST_P(Kernels, MatchTheDoubleDecoderInEveryLayout) {
  for (const Layout layout : testing::kLayouts) {
    for (const std::int64_t cols : widths(format())) {
      for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{37}, std::int64_t{133}}) {
        if (rows == 133 && cols > 800) continue;
        const auto matrix = testing::make_matrix(format(), rows, cols, layout, 7);
        if (!matrix) continue;
        const Activations x(set(), 25, cols, 11);
        const Truth truth(format(), matrix->encoded.view, x, 25);
        for (const std::int64_t tokens : {1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 25}) {
          if (cols > 1000 && tokens > 3 && tokens != 8 && tokens != 25) continue;  // the rest is proven equal by L15 below
          SCOPED_TRACE(std::string(testing::name_of(layout)) + " " + std::to_string(rows) + " x " + std::to_string(cols) +
                       ", tokens " + std::to_string(tokens));
          EXPECT_EQ(first_wrong(truth, tokens, run(set(), Which::many, matrix->view, 0, rows, x, 0, tokens)), "");
          if (tokens > set().max_few || !set().few_reads(matrix->view)) continue;
          EXPECT_EQ(first_wrong(truth, tokens, run(set(), Which::few, matrix->view, 0, rows, x, 0, tokens)), "");
        }
      }
    }
  }
}

TEST_P(Kernels, ReadManyColumnsInBlocks) {  // longer than one slab holds
  for (const Layout layout : {Layout::rows, Layout::columns, Layout::packed}) {
    const auto matrix = testing::make_matrix(format(), 18, 9248, layout, 5);
    if (!matrix) continue;
    const Activations x(set(), 14, 9248, 3);
    const Truth truth(format(), matrix->encoded.view, x, 14);
    EXPECT_EQ(first_wrong(truth, 14, run(set(), Which::many, matrix->view, 0, 18, x, 0, 14)), "");
    if (set().few != nullptr && set().few_reads(matrix->view)) {
      EXPECT_EQ(first_wrong(truth, 2, testing::run_all(set(), Which::few, matrix->view, x, 0, 2)), "");
    }
  }
}

TEST_P(Kernels, L15_BitsDoNotDependOnTokensOrRowBegin) {
  const std::int64_t rows = 70, cols = 352;
  for (const Layout layout : testing::kLayouts) {
    const auto matrix = testing::make_matrix(format(), rows, cols, layout, 1);
    if (!matrix) continue;
    const Activations x(set(), 33, cols, 2);
    for (const Which which : testing::ways(set())) {
      if (which == Which::few && !set().few_reads(matrix->view)) continue;
      std::vector<float> alone;  // [token][row]
      for (std::int64_t t = 0; t < 33; ++t) {
        const std::vector<float> one = run(set(), which, matrix->view, 0, rows, x, t, 1);
        alone.insert(alone.end(), one.begin(), one.end());
      }
      for (const std::int64_t tokens : {2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 25, 32}) {
        if (which == Which::few && tokens > set().max_few) continue;
        for (const std::int64_t begin : {0, 1, 16, 37, 69}) {
          if (matrix->view.panel_bytes > 0 && which == Which::many && begin % 16 != 0) continue;
          const std::vector<float> got = run(set(), which, matrix->view, begin, rows, x, 1, tokens);
          for (std::int64_t t = 0; t < tokens; ++t)
            for (std::int64_t n = begin; n < rows; ++n)
              ASSERT_EQ(std::bit_cast<std::uint32_t>(got[static_cast<std::size_t>(t * (rows - begin) + n - begin)]),
                        std::bit_cast<std::uint32_t>(alone[static_cast<std::size_t>((t + 1) * rows + n)]))
                  << testing::name_of(layout) << ", tokens " << tokens << ", token " << t << ", rows from " << begin << ", row "
                  << n;
        }
      }
    }
  }
}

TEST_P(Kernels, L15_HundredsOfTokensGetTheBitsOfOne) {  // more than one pass over the activations, more than one slab of rows
  if (set().many == nullptr) return;
  const std::int64_t rows = 150, cols = 1504;
  const auto matrix = testing::make_matrix(format(), rows, cols, Layout::rows, 17);
  const Activations x(set(), 530, cols, 18);
  for (const std::int64_t tokens : {500, 530}) {
    const std::vector<float> all = run(set(), Which::many, matrix->view, 0, rows, x, 0, tokens);
    for (std::int64_t t = 0; t < tokens; t += t < 480 ? 97 : 7) {
      const std::vector<float> one = run(set(), Which::many, matrix->view, 0, rows, x, t, 1);
      for (std::int64_t n = 0; n < rows; ++n)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(all[static_cast<std::size_t>(t * rows + n)]),
                  std::bit_cast<std::uint32_t>(one[static_cast<std::size_t>(n)]))
            << "token " << t << " of " << tokens << ", row " << n;
    }
  }
}

TEST_P(Kernels, TakeBf16RowsWhereTheyEncode) {
  KernelSet rows_of_bf16 = set();
  rows_of_bf16.activation = DType::bf16;
  const std::int64_t cols = format().facts.block_cols > 0 ? 11 * 32 : 331, tokens = 13;
  const auto matrix = testing::make_matrix(format(), 37, cols, Layout::rows, 3);
  const Activations x(rows_of_bf16, tokens, cols, 8);
  const Truth truth(format(), matrix->view, x, tokens);
  for (const Which which : testing::ways(set())) {
    if (which == Which::many && !set().many_takes(DType::bf16)) continue;
    EXPECT_EQ(first_wrong(truth, tokens, testing::run_all(set(), which, matrix->view, x, 0, tokens)), "");
  }
}

TEST_P(Kernels, EncodedActivationsOfTheLastCallGiveTheSameBits) {
  const std::int64_t rows = 70, cols = 352;
  const auto matrix = testing::make_matrix(format(), rows, cols, Layout::rows, 1);
  for (const Which which : testing::ways(set())) {
    const std::int64_t tokens = which == Which::few ? set().max_few : 37;
    const Activations x(set(), tokens, cols, 2);
    const std::vector<float> whole = run(set(), which, matrix->view, 0, rows, x, 0, tokens);
    testing::Scratch scratch(set(), cols);
    run(set(), which, matrix->view, 0, 33, x, 0, tokens, &scratch);
    const std::vector<float> rest = run(set(), which, matrix->view, 33, rows, x, 0, tokens, &scratch);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t n = 33; n < rows; ++n)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(rest[static_cast<std::size_t>(t * (rows - 33) + n - 33)]),
                  std::bit_cast<std::uint32_t>(whole[static_cast<std::size_t>(t * rows + n)]))
            << "token " << t << ", row " << n;
  }
}

TEST_P(Kernels, NanStaysInItsOwnToken) {
  const auto matrix = testing::make_matrix(format(), 20, 96, Layout::rows, 4);
  for (const Which which : testing::ways(set())) {
    Activations x(set(), 5, 96, 6);
    const std::vector<float> clean = testing::run_all(set(), which, matrix->view, x, 0, 5);
    x.set_value(2, 17, std::numeric_limits<float>::quiet_NaN());
    x.set_value(2, 80, std::numeric_limits<float>::infinity());
    const std::vector<float> got = testing::run_all(set(), which, matrix->view, x, 0, 5);
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (i / 20 == 2)
        EXPECT_TRUE(std::isnan(got[i]));
      else
        EXPECT_EQ(got[i], clean[i]);
    }
  }
}

/// Runs the kernels on a spoiled copy of a matrix and expects the bound to notice.
void expect_noticed(const Format& format, const KernelSet& set, const TestMatrix& matrix, const Activations& x,
                    const std::function<void(WeightView&, std::byte* codes, std::byte* scales)>& spoil) {
  EncodedMatrix copy = matrix.encoded;
  WeightView view = matrix.encoded.view;
  view.codes = copy.codes.data();
  if (view.scales != nullptr) view.scales = copy.scales.data();
  spoil(view, copy.codes.data(), copy.scales.data());
  const Truth truth(format, matrix.view, x, 3);
  for (const Which which : testing::ways(set)) EXPECT_NE(first_wrong(truth, 3, testing::run_all(set, which, view, x, 0, 3)), "");
}

TEST_P(Kernels, TheBoundNoticesAFlippedCode) {
  const std::int64_t cols = testing::encoding_step(set().arithmetic, 1) > 1e-3 ? 320 : 2880,  // few enough for 8-bit activations
      element_bits = static_cast<std::int64_t>(format().facts.bits_per_value);
  const auto matrix = testing::make_matrix(format(), 5, cols, Layout::rows, 9);
  const Activations x(set(), 3, cols, 10);
  std::vector<double> row(static_cast<std::size_t>(cols));
  format().decode(matrix->view, 2, 0, cols, row.data());
  std::int64_t heaviest = 0;
  for (std::int64_t k = 0; k < cols; ++k)
    if (std::fabs(row[static_cast<std::size_t>(k)] * x.value(0, k)) >
        std::fabs(row[static_cast<std::size_t>(heaviest)] * x.value(0, heaviest)))
      heaviest = k;
  expect_noticed(format(), set(), *matrix, x, [&](WeightView& view, std::byte* codes, std::byte*) {
    const std::int64_t bit = (heaviest + 1) * element_bits - 1;  // the sign of that element
    codes[2 * view.row_stride + bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  });
}

TEST_P(Kernels, TheBoundNoticesSwappedRows) {
  const auto matrix = testing::make_matrix(format(), 5, 320, Layout::rows, 9);
  const Activations x(set(), 3, 320, 10);
  expect_noticed(format(), set(), *matrix, x, [](WeightView& view, std::byte* codes, std::byte*) {
    std::swap_ranges(codes, codes + view.row_stride, codes + view.row_stride);
  });
}

TEST_P(Kernels, TheBoundNoticesScalesOffByOneBlock) {
  if (format().facts.scale_bytes == 0) GTEST_SKIP() << "this format has no block scales to shift";
  const auto matrix = testing::make_matrix(format(), 5, 320, Layout::rows, 9);
  const Activations x(set(), 3, 320, 10);
  expect_noticed(format(), set(), *matrix, x, [&](WeightView&, std::byte*, std::byte* scales) {
    std::rotate(scales, scales + format().facts.scale_bytes, scales + matrix->encoded.scales.size());
  });
}

INSTANTIATE_TEST_SUITE_P(All, Kernels, ::testing::ValuesIn(testing::all_cases()), testing::case_name);

TEST(KernelList, HasF32ForEveryFormatAndTarget) {
  for (const Format* format : all_formats())
    for (const testing::Target& target : testing::kTargets)
      EXPECT_NE(find_kernels(format->facts.name, target.name, KernelArithmetic::f32), nullptr);
}
TEST(KernelList, HasTheBf16DotOnlyWhereValuesAreExactInIt) {
  EXPECT_NE(find_kernels("mxfp4", "avx512_bf16", KernelArithmetic::bf16_dot), nullptr);
  EXPECT_EQ(find_kernels("f16", "avx512_bf16", KernelArithmetic::bf16_dot), nullptr);
  EXPECT_EQ(find_kernels("f32", "avx512_bf16", KernelArithmetic::bf16_dot), nullptr);
  EXPECT_EQ(find_kernels("mxfp4", "avx2", KernelArithmetic::bf16_dot), nullptr);
  EXPECT_EQ(find_kernels("mxfp4", "no_such_target", KernelArithmetic::f32), nullptr);
}

}  // namespace
}  // namespace motet
