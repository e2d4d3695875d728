// SPDX-License-Identifier: Apache-2.0
// The twins whose products read mxfp8 activations with flat or swizzled scales, held to the formulas written once more here.
#include <gtest/gtest.h>

#include "backends/reference/quantised_rows.h"
#include "backends/testing.h"
#include "base/thread_pool.h"
#include "plan/quantised.h"
#include "plan/recipe.h"

namespace motet::testing {
namespace {

constexpr const char* kTwins[] = {"twin_flat", "twin_swizzled"};
const Rows kRows{{0, 1, 2, 16, 127, 128, 129}};
const std::int64_t kTokens = kRows.total();

/// Every block of 32 columns has an exponent of its own, so that no scale can stand for another.
std::vector<float> inputs_by_block(std::int64_t rows, std::int64_t cols) {
  std::vector<float> x = inputs(rows, cols);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t k = 0; k < cols; ++k)
      x[static_cast<std::size_t>(r * cols + k)] *= std::ldexp(1.0f, static_cast<int>((7 * r + 5 * (k / 32)) % 13) - 6);
  }
  return x;
}

/// Neither width is a multiple of 32.
LayerSpec ragged() {
  LayerSpec spec = layer_spec("bf16");
  spec.hidden = 97;
  spec.intermediate = 41;
  spec.experts = 7;
  return spec;
}

Runner twin_of(const LayerSpec& spec, const std::shared_ptr<const LayerWeights>& weights, const std::string& backend) {
  Deployment deployment;
  deployment.tokens = kTokens;
  deployment.input = DType::f32;
  deployment.wishes.backend = backend;
  deployment.wishes.arithmetic = level_of(backend);
  return Runner(plan_with(spec, deployment, environment(), catalog()).value(), weights);
}

struct Wrong {
  bool next_blocks_scale = false;    ///< a scale is read from the place of the next one
  std::int64_t flipped_expert = -1;  ///< the sign of one weight of its down matrix is flipped
};

/// mxfp8 from the formula: scale 2^e, the smallest with amax / 2^e <= 448, elements on E4M3's grid, ties to even.
void quantise_naively(std::vector<double>& row, const Wrong& wrong) {
  std::vector<int> exponents;
  for (std::size_t begin = 0; begin < row.size(); begin += 32) {
    double amax = 0;
    for (std::size_t i = begin; i < std::min(begin + 32, row.size()); ++i) amax = std::max(amax, std::abs(row[i]));
    int exponent = 0;
    const double fraction = std::frexp(amax, &exponent);
    exponents.push_back(amax == 0 ? -127 : std::max(exponent - 9 + (fraction > 0.875), -127));
  }
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::size_t block = i / 32, read = wrong.next_blocks_scale ? (block + 1) % exponents.size() : block;
    const double scaled = std::ldexp(row[i], -exponents[block]);
    const double grid = scaled == 0 ? 1 : std::ldexp(1.0, std::max(std::ilogb(scaled), -6) - 3);
    row[i] = std::ldexp(std::nearbyint(scaled / grid) * grid, exponents[read]);
  }
}

double bf16_at(const WeightView& view, std::int64_t n, std::int64_t k) {
  std::uint16_t code;
  std::memcpy(&code, view.codes + n * view.row_stride + k * view.col_stride, 2);
  return f32_of_bits(static_cast<std::uint32_t>(code) << 16);
}

/// silu(gate x) * (up x), then down, in double on mxfp8 operands; intermediates and results rounded to fp32.
std::vector<float> formulas(const LayerWeights& weights, const std::vector<float>& x, const Wrong& wrong = {}) {
  std::vector<float> out;
  std::int64_t row = 0;
  for (std::size_t e = 0; e < kRows.counts.size(); ++e) {
    const ExpertView& expert = weights.experts[e];
    for (std::int64_t i = 0; i < kRows.counts[e]; ++i, ++row) {
      std::vector<double> in(x.begin() + row * expert.up.cols, x.begin() + (row + 1) * expert.up.cols), act;
      quantise_naively(in, wrong);
      for (std::int64_t n = 0; n < expert.up.rows; ++n) {
        double gate = 0, up = 0;
        for (std::int64_t k = 0; k < expert.up.cols; ++k)
          gate += bf16_at(expert.gate, n, k) * in[static_cast<std::size_t>(k)],
              up += bf16_at(expert.up, n, k) * in[static_cast<std::size_t>(k)];
        act.push_back(static_cast<float>(gate / (1 + std::exp(-gate)) * up));
      }
      quantise_naively(act, wrong);
      for (std::int64_t n = 0; n < expert.down.rows; ++n) {
        double sum = 0;
        for (std::int64_t k = 0; k < expert.down.cols; ++k) {
          const bool flip = wrong.flipped_expert == static_cast<std::int64_t>(e) && n == 0 && k == 0;
          sum += (flip ? -1 : 1) * bf16_at(expert.down, n, k) * act[static_cast<std::size_t>(k)];
        }
        out.push_back(static_cast<float>(sum));
      }
    }
  }
  return out;
}

class ScaleTwins : public ::testing::TestWithParam<const char*> {};

TEST_P(ScaleTwins, L6_EqualTheFormulasForEveryRowCountOnRaggedWidths) {
  const auto weights = make_synthetic_weights(ragged(), 31);
  Runner twin = twin_of(ragged(), weights, GetParam());
  ThreadPool pool(2);
  const std::vector<float> x = inputs_by_block(kTokens, ragged().hidden), got = twin.experts(x, kRows, pool);
  const double tolerance = 0x1p-24;  // the one rounding to fp32 that both do; a tie that falls apart would be far above
  EXPECT_LE(relative_error(got, formulas(*weights, x)), tolerance);
  EXPECT_GT(relative_error(got, formulas(*weights, x, {.next_blocks_scale = true})), twin.plan().recipe.error_bound);
  EXPECT_GT(relative_error(got, formulas(*weights, x, {.flipped_expert = 5})), tolerance);
}

TEST_P(ScaleTwins, StayWithinTheBoundOfTheirStep) {
  const LayerSpec spec = ragged();
  const auto weights = make_synthetic_weights(spec, 32);
  Runner twin = twin_of(spec, weights, GetParam()), reference = twin_of(spec, weights, "reference");
  ThreadPool pool(2);
  const std::vector<float> x = inputs_by_block(kTokens, spec.hidden), truth = reference.experts(x, kRows, pool);
  const double bound = quantised_error_bound(kMxfp8Step);
  EXPECT_DOUBLE_EQ(twin.plan().recipe.error_bound, bound);
  const double error = relative_error(twin.experts(x, kRows, pool), truth);
  EXPECT_LE(error, bound);
  EXPECT_GE(error, bound / 16) << "activations were not quantised";
  EXPECT_GT(relative_error(formulas(*weights, x, {.next_blocks_scale = true}), truth), bound);
}

TEST_P(ScaleTwins, L4_AbortOnPaddingThatIsNotZero) {
  EXPECT_DEATH(
      {
        Runner twin = twin_of(ragged(), make_synthetic_weights(ragged(), 33), GetParam());
        twin.spoil_padding = 1;
        ThreadPool pool(1);
        twin.experts(inputs(kTokens, ragged().hidden), kRows, pool);
      },
      "element 97 of 128 stored is not zero");
}

TEST_P(ScaleTwins, ABlockWithNaNSpoilsItsOwnTokenOnly) {
  const LayerSpec spec = ragged();
  Runner twin = twin_of(spec, make_synthetic_weights(spec, 34), GetParam());
  ThreadPool pool(2);
  std::vector<float> x = inputs_by_block(kTokens, spec.hidden);
  const std::vector<float> whole = twin.experts(x, kRows, pool);
  constexpr std::int64_t kSpoilt = 200;
  x[static_cast<std::size_t>(kSpoilt * spec.hidden + 40)] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> got = twin.experts(x, kRows, pool);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool spoilt = static_cast<std::int64_t>(i) / spec.hidden == kSpoilt;
    ASSERT_TRUE(spoilt ? std::isnan(got[i]) : got[i] == whole[i]) << i;
  }
}

TEST_P(ScaleTwins, L11_RefuseEveryLevelThatTheyCannotKeep) {
  for (const Arithmetic level : {Arithmetic::exact, Arithmetic::bf16}) {
    Deployment deployment;
    deployment.wishes.backend = GetParam();
    deployment.wishes.arithmetic = level;
    const PlanResult result = plan_with(layer_spec("bf16"), deployment, environment(), catalog());
    ASSERT_FALSE(result.plan.has_value());
    EXPECT_EQ(result.refusals.front().code, "arithmetic_too_coarse");
    EXPECT_NE(result.refusals.front().given.find(name_of(level)), std::string::npos);
  }
}

TEST_P(ScaleTwins, AreNotTakenUnasked) {
  Deployment deployment;
  deployment.wishes.arithmetic = Arithmetic::fast;
  const PlanResult result = plan_with(layer_spec("bf16"), deployment, environment(), catalog());
  ASSERT_TRUE(result.plan.has_value());
  EXPECT_NE(result.plan->backend, GetParam());
  const auto reported = std::find_if(result.choices.begin(), result.choices.end(),
                                     [](const Choice& choice) { return choice.kind == "backend" && choice.name == GetParam(); });
  ASSERT_NE(reported, result.choices.end());
  EXPECT_EQ(reported->verdict, Verdict::eligible);
}
INSTANTIATE_TEST_SUITE_P(All, ScaleTwins, ::testing::ValuesIn(kTwins));

TEST(L6, BothScaleLayoutsGiveTheSameBitsForEveryRowCount) {
  ThreadPool pool(2);
  for (const LayerSpec& spec : {ragged(), [] {
                                  LayerSpec whole = layer_spec("mxfp4");
                                  whole.experts = 7;
                                  return whole;
                                }()}) {
    const auto weights = make_synthetic_weights(spec, 35);
    Runner flat = twin_of(spec, weights, "twin_flat"), swizzled = twin_of(spec, weights, "twin_swizzled");
    const std::vector<float> x = inputs_by_block(kTokens, spec.hidden);
    EXPECT_EQ(flat.experts(x, kRows, pool), swizzled.experts(x, kRows, pool)) << spec.gate_up.format;
    for (const std::int64_t count : kRows.counts) {
      const Rows rows{{0, 0, count, 0, 0, 0, 0}};
      const std::vector<float> part(x.begin(), x.begin() + count * spec.hidden);
      EXPECT_EQ(flat.experts(part, rows, pool), swizzled.experts(part, rows, pool)) << spec.gate_up.format << ", " << count;
    }
  }
}

/// Rows of three slots, quantised into one layout and read as another; relative L2 difference of what is read.
double read_difference(Layout written, Layout read) {
  constexpr std::int64_t kWidth = 300, kGroups = 10;  // stored 320
  const std::int64_t first_row[] = {0, 130, 130, 150};
  const std::vector<float> x = inputs_by_block(150, kWidth);
  std::vector<std::uint8_t> codes(150 * 320);
  std::vector<E8m0> linear(150 * kGroups), scales(3 * 128 * 12);
  double difference = 0, norm = 0;
  for (std::int64_t slot = 0; slot < 3; ++slot) {
    const std::int64_t first = first_row[slot];
    QuantisedRows rows{.codes = codes.data() + first * 320,
                       .scales = scales.data() + first_scale(written, first_row, slot, kGroups),
                       .layout = written,
                       .rows = first_row[slot + 1] - first,
                       .valid = kWidth,
                       .stored = 320};
    quantise(reinterpret_cast<const std::byte*>(x.data() + first * kWidth), kWidth * 4, linear.data() + first * kGroups, rows);
    QuantisedRows seen = rows;
    seen.layout = read;
    seen.scales = scales.data() + first_scale(read, first_row, slot, kGroups);
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      for (std::int64_t k = 0; k < kWidth; ++k) {
        const double value = x[static_cast<std::size_t>((first + r) * kWidth + k)];
        difference += (seen.at(r, k) - value) * (seen.at(r, k) - value);
        norm += value * value;
      }
    }
  }
  return std::sqrt(difference / norm);
}

TEST(L6, AScaleReadFromTheOtherLayoutIsNoticed) {
  for (const Layout layout : {Layout::flat_scales, Layout::swizzled_128x4})
    EXPECT_LE(read_difference(layout, layout), kMxfp8Step) << name_of(layout);
  EXPECT_GT(read_difference(Layout::flat_scales, Layout::swizzled_128x4), quantised_error_bound(kMxfp8Step));
  EXPECT_GT(read_difference(Layout::swizzled_128x4, Layout::flat_scales), quantised_error_bound(kMxfp8Step));
}

TEST(L16, SwizzledScalesHaveRoomHoweverRowsFallOnSlots) {
  for (const std::int64_t rows : {0, 1, 2, 127, 128, 129, 255, 256, 257, 300}) {
    std::int64_t most[4] = {};
    for (std::int64_t a = 0; a <= rows; ++a) {
      for (std::int64_t b = 0; a + b <= rows; ++b) {
        const std::int64_t counts[] = {rows - a - b, b, a};
        for (std::size_t slots = a > 0 ? 3 : b > 0 ? 2 : 1; slots <= 3; ++slots)
          most[slots] = std::max(most[slots], *swizzled_128x4_count({counts, slots}, 4) / 512);
      }
    }
    for (const std::int64_t slots : {1, 2, 3}) EXPECT_EQ(most_row_tiles(rows, slots), most[slots]) << rows << " on " << slots;
  }
}

}  // namespace
}  // namespace motet::testing
