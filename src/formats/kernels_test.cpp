// SPDX-License-Identifier: Apache-2.0
// Every format x target x arithmetic x layout against the format's double decoder.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "base/cpu_features.h"
#include "base/numbers.h"
#include "formats/test_matrices.h"
#include "kernels/kernel.h"

namespace motet {
namespace {

using testing::Layout;
using testing::TestMatrix;

struct Target {
  const char* name;
  const char* flags;
  const char* needs;
};
constexpr Target kTargets[] = {
#define MOTET_TARGET_LINE(name, flags, needs) {#name, flags, needs},
#include "kernels/targets.inc"
#undef MOTET_TARGET_LINE
};

bool usable(const Target& target) {
  const std::string flags = target.flags;
  for (std::size_t at = 0; at < flags.size();) {
    const std::size_t end = std::min(flags.find(';', at), flags.size());
    if (!has_instructions(this_cpu(), flags.substr(at, end - at))) return false;
    at = end + 1;
  }
  return true;
}

/// Activations of the set's type, exact in it, 64-byte aligned, zero past cols.
struct Activations {
  std::int64_t cols, stride;
  bool bf16;
  std::vector<std::byte> bytes;
  std::byte* data;
  Activations(const KernelSet& set, std::int64_t tokens, std::int64_t columns, unsigned seed)
      : cols(columns), stride(0), bf16(set.activation == DType::bf16), data(nullptr) {
    const std::int64_t element = bf16 ? 2 : 4;
    stride = (cols + set.k_unit - 1) / set.k_unit * set.k_unit * element;
    stride = (stride + 63) / 64 * 64;
    bytes.assign(static_cast<std::size_t>(tokens * stride + 64), std::byte{0});
    data = bytes.data() + (64 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 64) % 64;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t k = 0; k < cols; ++k) set_value(t, k, normal(random));
  }
  void set_value(std::int64_t token, std::int64_t k, float value) {
    const std::uint16_t half = f32_to_bf16(value);
    if (bf16)
      std::memcpy(data + token * stride + 2 * k, &half, 2);
    else
      std::memcpy(data + token * stride + 4 * k, &value, 4);
  }
  double value(std::int64_t token, std::int64_t k) const {
    const std::byte* row = data + token * stride;
    return bf16 ? static_cast<double>(bf16_to_f32(load_unaligned<std::uint16_t>(row + 2 * k)))
                : static_cast<double>(load_unaligned<float>(row + 4 * k));
  }
};

enum class Which { few, many };

std::vector<float> run(const KernelSet& set, Which which, const WeightView& view, std::int64_t row_begin, std::int64_t row_end,
                       const Activations& x, std::int64_t first, std::int64_t tokens) {
  const std::int64_t rows = row_end - row_begin;
  std::vector<float> out(static_cast<std::size_t>(tokens * rows + 1), -777.0f);
  const auto scratch_bytes = static_cast<std::size_t>((set.scratch_bytes(view.cols) + 63) / 64 * 64);
  const std::unique_ptr<std::byte, void (*)(void*)> scratch(static_cast<std::byte*>(std::aligned_alloc(64, scratch_bytes + 64)),
                                                            std::free);
  std::memset(scratch.get(), 0xFF, scratch_bytes + 64);  // NaN: nothing may be used that was not written
  const MatmulArgs args = {.weight = &view,
                           .row_begin = row_begin,
                           .row_end = row_end,
                           .x = x.data + first * x.stride,
                           .x_stride = x.stride,
                           .tokens = tokens,
                           .out = out.data(),
                           .out_stride = rows,
                           .scratch = scratch.get()};
  (which == Which::few ? set.few : set.many)(args);
  EXPECT_EQ(out.back(), -777.0f) << "written past the end of the output";
  EXPECT_EQ(scratch.get()[set.scratch_bytes(view.cols)], std::byte{0xFF}) << "written past the end of the scratch";
  out.pop_back();
  return out;
}

/// fp32 sums of `cols` products, in any order, and a few roundings of scales: worst case, per unit of sum |w x|.
double accumulation_bound(std::int64_t cols) { return static_cast<double>(cols + 32) * 0x1p-24; }

/// The first output that is further from the double result of `truth` than the bound; "" when none is.
std::string first_wrong(const Format& format, const WeightView& truth, const Activations& x, std::int64_t first,
                        std::int64_t tokens, const std::vector<float>& out) {
  std::vector<double> row(static_cast<std::size_t>(truth.cols));
  for (std::int64_t n = 0; n < truth.rows; ++n) {
    format.decode(truth, n, 0, truth.cols, row.data());
    for (std::int64_t t = 0; t < tokens; ++t) {
      double sum = 0, magnitude = 0;
      for (std::int64_t k = 0; k < truth.cols; ++k) {
        const double product = row[static_cast<std::size_t>(k)] * x.value(first + t, k);
        sum += product;
        magnitude += std::fabs(product);
      }
      const double got = static_cast<double>(out[static_cast<std::size_t>(t * truth.rows + n)]);
      if (!(std::fabs(got - sum) <= accumulation_bound(truth.cols) * magnitude))
        return "row " + std::to_string(n) + ", token " + std::to_string(t) + ": " + std::to_string(got) + " instead of " +
               std::to_string(sum);
    }
  }
  return "";
}

std::vector<std::int64_t> widths(const Format& format) {
  if (format.facts.block_cols == 1) return {1, 31, 40, 88, 703, 1856};
  if (format.facts.bits_per_value == 4)
    return {format.facts.block_cols, 96, 112 / format.facts.block_cols * format.facts.block_cols, 720 / 32 * 32, 2880};
  return {1, 40, 88, 320, 704, 1999};
}

struct Case {
  const Format* format;
  const Target* target;
  KernelArithmetic arithmetic;
};
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Format* format : all_formats())
    for (const Target& target : kTargets)
      for (const KernelArithmetic arithmetic : {KernelArithmetic::f32, KernelArithmetic::bf16_dot})
        if (find_kernels(format->facts.name, target.name, arithmetic) != nullptr) cases.push_back({format, &target, arithmetic});
  return cases;
}

class Kernels : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Target& target = *GetParam().target;
    if (!usable(target)) GTEST_SKIP() << "target " << target.name << " needs " << target.needs;
    set_ = find_kernels(format().facts.name, target.name, GetParam().arithmetic);
  }
  const Format& format() const { return *GetParam().format; }
  const KernelSet& set() const { return *set_; }

 private:
  const KernelSet* set_ = nullptr;
};

TEST_P(Kernels, MatchTheDoubleDecoderInEveryLayout) {
  for (const Layout layout : testing::kLayouts) {
    for (const std::int64_t cols : widths(format())) {
      for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{37}, std::int64_t{133}}) {
        if (rows == 133 && cols > 800) continue;
        const auto matrix = testing::make_matrix(format(), rows, cols, layout, 7);
        if (!matrix) continue;
        const Activations x(set(), 25, cols, 11);
        for (const std::int64_t tokens : {1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 25}) {
          if (cols > 1000 && tokens > 3 && tokens != 8 && tokens != 25) continue;  // the rest is proven equal by L15 below
          SCOPED_TRACE(std::string(testing::name_of(layout)) + " " + std::to_string(rows) + " x " + std::to_string(cols) +
                       ", tokens " + std::to_string(tokens));
          EXPECT_EQ(first_wrong(format(), matrix->view, x, 0, tokens, run(set(), Which::many, matrix->view, 0, rows, x, 0, tokens)),
                    "");
          if (tokens > set().max_few || !set().few_reads(matrix->view)) continue;
          EXPECT_EQ(first_wrong(format(), matrix->view, x, 0, tokens, run(set(), Which::few, matrix->view, 0, rows, x, 0, tokens)),
                    "");
        }
      }
    }
  }
}

TEST_P(Kernels, ReadManyColumnsInBlocks) {  // longer than one slab holds
  for (const Layout layout : {Layout::rows, Layout::columns}) {
    const auto matrix = testing::make_matrix(format(), 18, 9248, layout, 5);
    if (!matrix) continue;
    const Activations x(set(), 14, 9248, 3);
    EXPECT_EQ(first_wrong(format(), matrix->view, x, 0, 14, run(set(), Which::many, matrix->view, 0, 18, x, 0, 14)), "");
    if (set().few_reads(matrix->view)) {
      EXPECT_EQ(first_wrong(format(), matrix->view, x, 0, 2, run(set(), Which::few, matrix->view, 0, 18, x, 0, 2)), "");
    }
  }
}

TEST_P(Kernels, L15_BitsDoNotDependOnTokensOrRowBegin) {
  const std::int64_t rows = 70, cols = 352;
  for (const Layout layout : testing::kLayouts) {
    const auto matrix = testing::make_matrix(format(), rows, cols, layout, 1);
    if (!matrix) continue;
    const Activations x(set(), 33, cols, 2);
    for (const Which which : {Which::few, Which::many}) {
      if (which == Which::few && !set().few_reads(matrix->view)) continue;
      std::vector<float> alone;  // [token][row]
      for (std::int64_t t = 0; t < 33; ++t) {
        const std::vector<float> one = run(set(), which, matrix->view, 0, rows, x, t, 1);
        alone.insert(alone.end(), one.begin(), one.end());
      }
      for (const std::int64_t tokens : {2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 25, 32}) {
        if (which == Which::few && tokens > set().max_few) continue;
        for (const std::int64_t begin : {0, 1, 16, 37, 69}) {
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

/// A packed or 8-bit matrix that holds every code under every legal scale byte (8-bit: in rows of 32 codes, under scale 1).
std::unique_ptr<TestMatrix> every_code(const Format& format) {
  const bool packed = format.facts.bits_per_value == 4;
  const std::int64_t rows = packed ? (format.facts.name == "mxfp4" ? 255 : 127) : 8;
  const std::vector<float> ones(static_cast<std::size_t>(rows * 32), 1.0f);
  EncodedMatrix encoded;
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
  if (!packed) std::memcpy(encoded.scales.data(), &one, sizeof one);
  return testing::lay_out(std::move(encoded), Layout::rows);
}

TEST_P(Kernels, DecodeEveryCodeUnderEveryScaleExactly) {  // one-hot activations hand out the values
  if (format().facts.bits_per_value > 8) return;
  const auto matrix = every_code(format());
  const std::int64_t rows = matrix->view.rows;
  Activations x(set(), 32, 32, 1);
  for (std::int64_t t = 0; t < 32; ++t)
    for (std::int64_t k = 0; k < 32; ++k) x.set_value(t, k, t == k ? 1.0f : 0.0f);
  for (const Which which : {Which::few, Which::many}) {
    for (std::int64_t t = 0; t < 32; t += 8) {
      const std::vector<float> out = run(set(), which, matrix->view, 0, rows, x, t, 8);
      for (std::int64_t n = 0; n < rows; ++n) {
        double row[32];
        format().decode(matrix->view, n, 0, 32, row);
        for (std::int64_t i = 0; i < 8; ++i)
          ASSERT_EQ(out[static_cast<std::size_t>(i * rows + n)], static_cast<float>(row[t + i]))
              << "row " << n << ", column " << t + i;
      }
    }
  }
}

TEST_P(Kernels, NanStaysInItsOwnToken) {
  const auto matrix = testing::make_matrix(format(), 20, 96, Layout::rows, 4);
  for (const Which which : {Which::few, Which::many}) {
    Activations x(set(), 5, 96, 6);
    const std::vector<float> clean = run(set(), which, matrix->view, 0, 20, x, 0, 5);
    x.set_value(2, 17, std::numeric_limits<float>::quiet_NaN());
    x.set_value(2, 80, std::numeric_limits<float>::infinity());
    const std::vector<float> got = run(set(), which, matrix->view, 0, 20, x, 0, 5);
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
  for (const Which which : {Which::few, Which::many})
    EXPECT_NE(first_wrong(format, matrix.view, x, 0, 3, run(set, which, view, 0, view.rows, x, 0, 3)), "");
}

TEST_P(Kernels, TheBoundNoticesAFlippedCode) {
  const std::int64_t cols = 2880, element_bits = static_cast<std::int64_t>(format().facts.bits_per_value);
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
  if (format().facts.scale_bytes == 0) return;  // nothing to shift
  const auto matrix = testing::make_matrix(format(), 5, 320, Layout::rows, 9);
  const Activations x(set(), 3, 320, 10);
  expect_noticed(format(), set(), *matrix, x, [&](WeightView&, std::byte*, std::byte* scales) {
    std::rotate(scales, scales + format().facts.scale_bytes, scales + matrix->encoded.scales.size());
  });
}

TEST_P(Kernels, StayExactAtTheEndsOfTheScaleRange) {
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
  for (const Which which : {Which::few, Which::many}) {
    for (std::int64_t t = 0; t < 13; ++t) {
      const std::vector<float> out = run(set(), which, matrix->view, 0, rows, x, t, 1);
      std::vector<double> row(96);
      for (std::int64_t n = 0; n < rows; ++n) {
        format().decode(matrix->view, n, 0, cols, row.data());
        double sum = 0, magnitude = 0;
        for (std::int64_t k = 0; k < cols; ++k) {
          sum += row[static_cast<std::size_t>(k)] * x.value(t, k);
          magnitude += std::fabs(row[static_cast<std::size_t>(k)] * x.value(t, k));
        }
        if (magnitude > 0x1p127) continue;  // beyond fp32
        EXPECT_LE(std::fabs(static_cast<double>(out[static_cast<std::size_t>(n)]) - sum),
                  accumulation_bound(cols) * magnitude + 0x1p-149)
            << "row " << n << ", token " << t << (which == Which::few ? ", few" : ", many");
      }
    }
  }
}

TEST_P(Kernels, ReadFp8BlocksOfAnyConfiguredSize) {
  if (format().facts.name != "fp8_block") return;
  const std::int64_t rows = 90, cols = 208;
  for (const auto& [block_rows, block_cols] :
       {std::pair<std::int64_t, std::int64_t>{128, 128}, {32, 64}, {7, 48}, {1, 208}, {90, 1000}, {3, 16}}) {
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
      EXPECT_EQ(first_wrong(format(), view, x, 0, 14, run(set(), Which::many, view, 0, rows, x, 0, 14)), "")
          << block_rows << " x " << block_cols;
      EXPECT_EQ(first_wrong(format(), view, x, 0, 4, run(set(), Which::few, view, 0, rows, x, 0, 4)), "")
          << block_rows << " x " << block_cols;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Kernels, ::testing::ValuesIn(all_cases()), [](const auto& info) {
  return std::string(info.param.format->facts.name) + "_" + info.param.target->name + "_" +
         std::string(name_of(info.param.arithmetic));
});

TEST(KernelList, HasF32ForEveryFormatAndTarget) {
  for (const Format* format : all_formats())
    for (const Target& target : kTargets) EXPECT_NE(find_kernels(format->facts.name, target.name, KernelArithmetic::f32), nullptr);
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
