// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/numbers.h"
#include "formats/layer_weights.h"
#include "motet/verify.h"
#include "runtime/check_runs.h"

namespace motet {
namespace {

constexpr std::int64_t kTokens = 9;

/// A forward by the default backend and its check, with a chance to break either side in between.
class CheckForward : public testing::TestWithParam<const char*> {
 protected:
  LayerSpec spec = with_format(check_shape("intermediate-704"), GetParam());
  std::shared_ptr<LayerWeights> weights = std::const_pointer_cast<LayerWeights>(synthetic_weights(spec, 1));
  Environment environment = Environment::probe();
  std::unique_ptr<Layer> layer = Layer::create(
      plan_way(spec, {.backend = "cpu", .target = "", .arithmetic = Arithmetic::exact}, kTokens, environment).value(), weights);
  std::vector<float> x = synthetic_hidden_states(kTokens, spec.hidden, 3);
  CheckRun run = run_tokens(*layer, x, 0, kTokens);

  CheckReport check(const std::shared_ptr<const LayerWeights>& truth) {
    const ForwardInput input{.hidden_states = {x.data(), DType::f32, kTokens, spec.hidden}, .router_logits = {}};
    return check_forward(layer->plan(), truth, input, {run.output.data(), DType::f32, kTokens, spec.hidden}, run.index.data(),
                         run.weights.data());
  }
  CheckReport check() { return check(weights); }
  /// Other weights with the same router, so that only the experts differ.
  std::shared_ptr<LayerWeights> experts_changed(void (*change)(LayerWeights&)) {
    auto other = std::const_pointer_cast<LayerWeights>(synthetic_weights(spec, 1));
    change(*other);
    return other;
  }
};

TEST_P(CheckForward, AcceptsARightResult) {
  ASSERT_TRUE(run.status.ok()) << run.status.text();
  const CheckReport report = check();
  EXPECT_TRUE(report.ok) << report.text;
  EXPECT_GT(report.relative_l2, 0);
  EXPECT_LE(report.relative_l2, report.bound);
  EXPECT_EQ(report.tokens, kTokens);
}

TEST_P(CheckForward, NoticesAnFp32KernelThatWastesMostOfThePromiseAndAnyThatBreaksIt) {
  const bool f32 = layer->plan().recipe.arithmetic == "f32";  // integer activations use part of the promise
  const double promise = layer->plan().recipe.error_bound, unchanged = check().relative_l2;
  double squares = 0;
  for (const float value : run.output) squares += static_cast<double>(value) * value;
  const double size = std::sqrt(squares / static_cast<double>(run.output.size()));
  for (std::size_t i = 0; i < run.output.size(); ++i)
    run.output[i] = static_cast<float>(run.output[i] + (i % 2 == 0 ? 1 : -1) * (f32 ? 0.5 : 3) * promise * size);
  const CheckReport report = check();
  if (f32) {
    EXPECT_GT(report.relative_l2, 100 * unchanged);
    EXPECT_LT(report.relative_l2, promise);
  }
  EXPECT_FALSE(report.ok) << report.text;
}

TEST_P(CheckForward, NoticesASkippedToken) {
  std::fill(run.output.end() - spec.hidden, run.output.end(), 0.0f);
  EXPECT_FALSE(check().ok);
}

TEST_P(CheckForward, NoticesSwappedExperts) {
  EXPECT_FALSE(check(experts_changed([](LayerWeights& other) { std::swap(other.experts[0], other.experts[1]); })).ok);
}

TEST_P(CheckForward, NoticesOneFlippedCode) {
  EXPECT_FALSE(check(experts_changed([](LayerWeights& other) {
                 // The sign of the largest code of row 0: bit 7 of a bf16's high byte, bit 3 of an even column's E2M1 nibble.
                 const WeightView& up = other.experts[0].up;
                 auto* codes = const_cast<std::byte*>(up.codes);
                 const bool packed = up.col_stride == 0;
                 const std::byte magnitude = packed ? std::byte{7} : std::byte{0x7F},
                                 sign = packed ? std::byte{8} : std::byte{0x80};
                 std::int64_t largest = packed ? 0 : 1;
                 for (std::int64_t at = largest; at < (packed ? up.cols / 2 : up.cols * 2); at += packed ? 1 : 2)
                   if ((codes[at] & magnitude) > (codes[largest] & magnitude)) largest = at;
                 codes[largest] ^= sign;
               })).ok);
}

class CheckForwardScaled : public CheckForward {};
TEST_P(CheckForwardScaled, NoticesScalesInAnotherOrder) {
  ASSERT_NE(weights->experts[0].up.scales, nullptr);
  EXPECT_FALSE(check(experts_changed([](LayerWeights& other) {
                 for (ExpertView& expert : other.experts) {
                   expert.up.scales += (expert.up.rows - 1) / expert.up.block_rows * expert.up.scale_row_stride;  // last row first
                   expert.up.scale_row_stride = -expert.up.scale_row_stride;
                 }
               })).ok);
}

TEST_P(CheckForward, NoticesWeightsThatAreOff) {
  run.weights[0] += 0.01f;
  EXPECT_FALSE(check().ok);
}

TEST_P(CheckForward, NoticesOneSidedNaN) {
  run.output[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(check().ok);
}

TEST_P(CheckForward, NaNTokensAreRightWhenBothSidesSaySo) {
  x[2] = std::numeric_limits<float>::quiet_NaN();
  run = run_tokens(*layer, x, 0, kTokens);
  const CheckReport report = check();
  EXPECT_TRUE(report.ok) << report.text;
}

INSTANTIATE_TEST_SUITE_P(ScaledFormats, CheckForwardScaled, testing::Values("mxfp4", "nvfp4", "fp8_block"),
                         [](const auto& info) { return std::string(info.param); });
INSTANTIATE_TEST_SUITE_P(Formats, CheckForward, testing::Values("bf16", "mxfp4"),
                         [](const auto& info) { return std::string(info.param); });

/// Routing of a layer that chooses 2 of 5.
class CheckRouting : public testing::Test {
 protected:
  LayerSpec spec = check_shape("intermediate-720-scaled");
  std::shared_ptr<const LayerWeights> weights = synthetic_weights(spec, 1);
  Environment environment = Environment::probe();
  std::unique_ptr<Layer> layer =
      Layer::create(plan_way(spec, {.backend = "reference", .target = ""}, kTokens, environment).value(), weights);
  std::vector<float> x = synthetic_hidden_states(kTokens, spec.hidden, 4);

  CheckReport check(const CheckRun& run, const float* logits = nullptr) {
    ForwardInput input{.hidden_states = {x.data(), DType::f32, kTokens, spec.hidden}, .router_logits = {}};
    if (logits != nullptr) input.router_logits = {logits, DType::f32, kTokens, spec.experts};
    return check_forward(layer->plan(), weights, input, {run.output.data(), DType::f32, kTokens, spec.hidden}, run.index.data(),
                         run.weights.data());
  }
};

TEST_F(CheckRouting, ATokenRoutedElsewhereIsAMismatchThoughItsOutputAgrees) {
  CheckRun run = run_tokens(*layer, x, 0, kTokens);
  ASSERT_EQ(check(run).routing_mismatches, 0);
  std::int32_t unused = 0;
  while (unused == run.index[0] || unused == run.index[1]) ++unused;
  std::vector<std::int32_t> index = run.index;
  std::vector<float> given = run.weights;
  index[0] = unused;
  ForwardInput input{.hidden_states = {x.data(), DType::f32, kTokens, spec.hidden},
                     .router_logits = {},
                     .top_k_index = index.data(),
                     .top_k_weights = given.data()};
  ForwardOutput output{.output = {run.output.data(), DType::f32, kTokens, spec.hidden},
                       .top_k_index = run.index.data(),
                       .top_k_weights = run.weights.data()};
  ASSERT_TRUE(layer->forward(input, output).ok());  // a right layer of a wrong choice
  const CheckReport report = check(run);
  EXPECT_EQ(report.routing_mismatches, 1);
  EXPECT_LE(report.relative_l2, report.bound);
  EXPECT_FALSE(report.ok);
}

TEST_F(CheckRouting, GivenLogitsLeaveNoMarginAndTiesGoToTheLowerExpert) {
  std::vector<float> logits(static_cast<std::size_t>(kTokens * spec.experts), 1.0f);
  spec.router = layer->plan().spec.router;
  CheckRun run = run_tokens(*layer, x, 0, kTokens);
  ForwardInput input{.hidden_states = {x.data(), DType::f32, kTokens, spec.hidden},
                     .router_logits = {logits.data(), DType::f32, kTokens, spec.experts}};
  ForwardOutput output{.output = {run.output.data(), DType::f32, kTokens, spec.hidden},
                       .top_k_index = run.index.data(),
                       .top_k_weights = run.weights.data()};
  ASSERT_TRUE(layer->forward(input, output).ok());
  const CheckReport report = check(run, logits.data());
  EXPECT_TRUE(report.ok) << report.text;
  EXPECT_EQ(report.near_ties, 0);
}

TEST(RunChecks, FilterChoosesBySubstringAndByGlob) {
  for (const char* filter : {"numerics/twin_wide:exact/bf16/intermediate-704", "numerics/*_wide*/bf16/intermediate-704"}) {
    const std::vector<CheckCase> cases = run_checks({.filter = filter});
    ASSERT_EQ(cases.size(), 1u) << filter;
    EXPECT_EQ(cases[0].name, "numerics/twin_wide:exact/bf16/intermediate-704");
    EXPECT_TRUE(cases[0].passed) << cases[0].detail;
    EXPECT_FALSE(cases[0].skipped);
  }
  EXPECT_TRUE(run_checks({.filter = "no such case"}).empty());
}

TEST(RunChecks, TheReferenceIsNotHeldToItself) { EXPECT_TRUE(run_checks({.filter = "numerics/reference"}).empty()); }

TEST(RunChecks, EndsEarlyWhenAskedAndKeepsTheCasesSoFar) {
  static int asked;
  asked = 0;
  const std::vector<CheckCase> cases = run_checks({.filter = "L9.zero_tokens_run/twin", .stop = [] { return ++asked > 2; }});
  EXPECT_EQ(cases.size(), 2u);
  EXPECT_EQ(asked, 3) << "once before each case, not again after it said to stop";
  for (const CheckCase& each : cases) EXPECT_TRUE(each.passed) << each.detail;
}

}  // namespace
}  // namespace motet
