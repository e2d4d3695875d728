// SPDX-License-Identifier: Apache-2.0
// int16_dot and int8_dot: what becomes of activations, seen through matrices of ones on the diagonal, and the error of whole
// products.
#include <cmath>

#include "formats/kernel_testing.h"

namespace motet {
namespace {

using testing::Activations;
using testing::Layout;
using testing::run;
using testing::TestMatrix;
using testing::Which;

constexpr Which kBoth[] = {Which::few, Which::many};

class KernelInts : public testing::KernelCase {
 protected:
  bool wide() const { return set().arithmetic == KernelArithmetic::int16_dot; }
  float largest() const { return wide() ? 32767.0f : 127.0f; }
  /// Activations of a type that the set does not name: it takes both.
  Activations activations(DType dtype, std::int64_t tokens, std::int64_t cols, unsigned seed) const {
    KernelSet as = set();
    as.activation = dtype;
    return Activations(as, tokens, cols, seed);
  }
  std::vector<float> run_all(Which which, const WeightView& view, const Activations& x, std::int64_t tokens) const {
    return testing::run_all(set(), which, view, x, 0, tokens);
  }
};

/// cols x cols, 1 on the diagonal under scales of 1: a product hands out the activations as they were encoded.
std::unique_ptr<TestMatrix> unit_matrix(const Format& format, std::int64_t cols) {
  EncodedMatrix encoded;
  const std::vector<float> zeros(static_cast<std::size_t>(cols * cols), 0.0f);
  format.encode(zeros.data(), cols, cols, encoded);
  encoded.view.tensor_scale = 1;
  std::fill(encoded.scales.begin(), encoded.scales.end(),
            encoded.view.scale_dtype == DType::f8_e8m0 ? std::byte{0x7F} : std::byte{0x38});
  for (std::int64_t n = 0; n < cols; ++n)
    encoded.codes[static_cast<std::size_t>(n * encoded.view.row_stride + n / 2)] |= n % 2 == 0 ? std::byte{0x02} : std::byte{0x20};
  return testing::lay_out(std::move(encoded), Layout::rows);
}

TEST_P(KernelInts, EveryIntegerArrivesExactly) {
  const int limit = static_cast<int>(largest()), per_token = 31;
  const std::int64_t tokens = (2 * limit + per_token) / per_token;
  const auto matrix = unit_matrix(format(), 32);
  Activations x = activations(DType::f32, tokens, 32, 1);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t peak = t % 32;  // this element makes the scale an eighth
    for (std::int64_t k = 0, q = t * per_token - limit; k < 32; ++k)
      x.set_value(t, k, 0.125f * static_cast<float>(k == peak ? limit : std::min<std::int64_t>(q++, limit)));
  }
  for (const Which which : kBoth) {
    const std::vector<float> out = run_all(which, matrix->view, x, tokens);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t k = 0; k < 32; ++k)
        ASSERT_EQ(static_cast<double>(out[static_cast<std::size_t>(t * 32 + k)]), x.value(t, k))
            << "token " << t << ", column " << k;
  }
}

TEST_P(KernelInts, EncodeAsTheFormulaSays) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t cols : {std::int64_t{32}, format().facts.block_cols * 5, std::int64_t{96}}) {
      const auto matrix = unit_matrix(format(), cols);
      const std::int64_t tokens = 40;
      Activations x = activations(dtype, tokens, cols, 5);
      for (std::int64_t t = 0; t < tokens; ++t)
        for (std::int64_t k = 0; k < cols; ++k)
          x.set_value(t, k, std::ldexp(static_cast<float>(x.value(t, k)), static_cast<int>(t * 6 - 110)));
      for (std::int64_t k = 0; k < 32; ++k) {  // ties; only zeros
        x.set_value(0, k, k == 7 ? largest() : static_cast<float>(k - 16) + 0.5f);
        x.set_value(1, k, k % 2 == 0 ? 0.0f : -0.0f);
      }
      for (const Which which : kBoth) {
        const std::vector<float> out = run_all(which, matrix->view, x, tokens);
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (std::int64_t k = 0; k < cols; ++k) {
            float peak = 0;
            for (std::int64_t i = k / 32 * 32; i < cols && i < k / 32 * 32 + 32; ++i)
              peak = std::max(peak, static_cast<float>(std::fabs(x.value(t, i))));
            const float scale = std::max(peak / largest(), 0x1p-124f), inverse = 1.0f / scale,
                        value = static_cast<float>(x.value(t, k));
            const double q = std::nearbyint(static_cast<double>(value * inverse));
            const float got = out[static_cast<std::size_t>(t * cols + k)];
            ASSERT_EQ(got, static_cast<float>(q * static_cast<double>(scale)))
                << "token " << t << ", column " << k << " of " << cols;
            ASSERT_LE(std::fabs(q * static_cast<double>(scale) - x.value(t, k)), testing::encoding_step(set().arithmetic, peak))
                << "token " << t << ", column " << k << " of " << cols;
          }
        }
      }
    }
  }
}

TEST_P(KernelInts, NanAndInfinitySpoilTheirGroupAlone) {
  const auto matrix = unit_matrix(format(), 96);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    Activations x = activations(DType::f32, 3, 96, 8);
    const std::vector<float> clean = run(set(), Which::many, matrix->view, 0, 96, x, 0, 3);
    x.set_value(1, 40, bad);
    for (const Which which : kBoth) {
      const std::vector<float> got = run_all(which, matrix->view, x, 3);
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (i / 96 == 1)
          EXPECT_TRUE(std::isnan(got[i])) << i;  // every row of that token meets it, be it times zero
        else
          EXPECT_EQ(got[i], clean[i]) << i;
      }
    }
  }
}

TEST_P(KernelInts, KeepTheEncodingWhenTold) {
  const std::int64_t rows = 40, cols = 352;
  const auto matrix = testing::make_matrix(format(), rows, cols, Layout::rows, 3);
  for (const Which which : kBoth) {
    const std::int64_t tokens = which == Which::few ? set().max_few : 21;
    Activations x = activations(DType::f32, tokens, cols, 4);
    std::vector<float> first(static_cast<std::size_t>(tokens * rows)), second = first;
    std::vector<std::byte> bytes(static_cast<std::size_t>(set().scratch_bytes(cols) + 64));
    MatmulArgs args = {.weight = &matrix->view,
                       .row_begin = 0,
                       .row_end = rows,
                       .x = x.data,
                       .x_stride = x.stride,
                       .tokens = tokens,
                       .out = first.data(),
                       .out_stride = rows,
                       .scratch = bytes.data() + (64 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 64) % 64};
    (which == Which::few ? set().few : set().many)(args);
    std::fill(x.bytes.begin(), x.bytes.end(), std::byte{0xFF});  // NaN: may not be looked at again
    args.encoded = true;
    args.out = second.data();
    (which == Which::few ? set().few : set().many)(args);
    EXPECT_EQ(first, second);
  }
}

/// Relative L2 error over all tokens and rows against double sums on the decoded weights.
double relative_error(const Format& format, const WeightView& view, const Activations& x, std::int64_t tokens,
                      const std::vector<float>& out) {
  std::vector<double> row(static_cast<std::size_t>(view.cols));
  double wrong = 0, all = 0;
  for (std::int64_t n = 0; n < view.rows; ++n) {
    format.decode(view, n, 0, view.cols, row.data());
    for (std::int64_t t = 0; t < tokens; ++t) {
      double sum = 0;
      for (std::int64_t k = 0; k < view.cols; ++k) sum += row[static_cast<std::size_t>(k)] * x.value(t, k);
      const double difference = static_cast<double>(out[static_cast<std::size_t>(t * view.rows + n)]) - sum;
      wrong += difference * difference;
      all += sum * sum;
    }
  }
  return std::sqrt(wrong / all);
}

/// Kinds of activations: plain Gaussian; 1 % of the channels 6 to 20 times larger; four channels 100 times larger.
struct Kind {
  const char* name;
  double int16_limit, int8_limit;  ///< what the levels `exact` and `fast` promise
};
constexpr Kind kKinds[] = {{"gaussian", 2e-4, 1.5e-2}, {"outliers", 2e-4, 2e-2}, {"four channels", 2e-4, 2.5e-2}};

TEST_P(KernelInts, ProductsKeepTheErrorThatTheLevelsPromise) {
  const std::int64_t rows = 48, cols = 2880, tokens = 8;
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  for (float& value : values) value = normal(random);
  EncodedMatrix encoded;
  format().encode(values.data(), rows, cols, encoded);
  for (int kind = 0; kind < 3; ++kind) {
    Activations x = activations(DType::f32, tokens, cols, 18);
    std::uniform_real_distribution<float> factor(6.0f, 20.0f);
    for (std::int64_t i = 0; kind > 0 && i < (kind == 1 ? cols / 100 : 4); ++i) {
      const auto k = static_cast<std::int64_t>(random() % static_cast<unsigned>(cols));
      const float larger = kind == 1 ? factor(random) : 100.0f;
      for (std::int64_t t = 0; t < tokens; ++t) x.set_value(t, k, static_cast<float>(x.value(t, k)) * larger);
    }
    for (const Which which : kBoth) {
      const double error = relative_error(format(), encoded.view, x, tokens, run_all(which, encoded.view, x, tokens));
      RecordProperty(std::string(kKinds[kind].name) + (which == Which::few ? "_few" : "_many"), std::to_string(error));
      EXPECT_LE(error, wide() ? kKinds[kind].int16_limit : kKinds[kind].int8_limit) << kKinds[kind].name;
      EXPECT_GE(error, wide() ? 1e-6 : 1e-3) << "the activations were not encoded: " << kKinds[kind].name;
    }
  }
}

std::vector<testing::Case> int_cases() {
  std::vector<testing::Case> cases;
  for (const Format* format : all_formats())
    for (const testing::Target& target : testing::kTargets)
      for (const KernelArithmetic arithmetic : {KernelArithmetic::int16_dot, KernelArithmetic::int8_dot})
        if (find_kernels(format->facts.name, target.name, arithmetic) != nullptr) cases.push_back({format, &target, arithmetic});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(All, KernelInts, ::testing::ValuesIn(int_cases()), testing::case_name);

TEST(KernelList, HasIntegersForEveryTargetWhereCodesAreIntegers) {
  for (const testing::Target& target : testing::kTargets) {
    for (const char* format : {"mxfp4", "nvfp4"})
      for (const KernelArithmetic arithmetic : {KernelArithmetic::int16_dot, KernelArithmetic::int8_dot}) {
        const KernelSet* set = find_kernels(format, target.name, arithmetic);
        ASSERT_NE(set, nullptr) << format << ", " << target.name;
        EXPECT_GT(set->max_few, 0);
        EXPECT_TRUE(set->many_takes(DType::f32) && set->many_takes(DType::bf16));
      }
    EXPECT_EQ(find_kernels("bf16", target.name, KernelArithmetic::int16_dot), nullptr);
  }
}

}  // namespace
}  // namespace motet
