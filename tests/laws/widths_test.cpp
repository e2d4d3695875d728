// SPDX-License-Identifier: Apache-2.0
// L1 one owner per width, L2 true widths outside, L3 one shape function, L5 the tail, L14 one site for the weight.
#include <limits>

#include "fixture.h"

namespace motet::laws {
namespace {

TEST(L1, EveryPaddedWidthHasAnOwnerAndAReason) {
  const LayerSpec& spec = check_shape("hidden-2880");
  for (const CheckWay& way : usable_ways()) {
    SCOPED_TRACE(way.name());
    const Plan plan = plan_way(spec, way, 4, machine()).value();
    for (const Axis axis : {Axis::hidden, Axis::gate, Axis::up, Axis::down_in, Axis::down_out}) {
      const Width* width = plan.width(axis);
      ASSERT_NE(width, nullptr);
      EXPECT_GE(width->stored, width->valid);
      EXPECT_FALSE(width->owner.empty());
      EXPECT_FALSE(width->reason.empty());
    }
  }
}

TEST(L1, Hidden2880IsStoredThreeWays) {
  const LayerSpec& spec = check_shape("hidden-2880");
  const auto stored = [&](const char* backend) {
    return plan_way(spec, {.backend = backend, .target = ""}, 4, machine()).value().stored(Axis::hidden);
  };
  EXPECT_EQ(stored("reference"), 2880);
  EXPECT_EQ(stored("twin_aligned"), 2944);
  EXPECT_EQ(stored("twin_wide"), 3072);
}

TEST(L2, PaddedHiddenStatesAndOutputsAreRefused) {
  const LayerSpec& spec = check_shape("hidden-2880");
  const auto layer = make_layer(spec, {.backend = "twin_wide", .target = ""}, 2);
  std::vector<float> wide(2 * 3072), narrow(2 * 2880);
  RunStatus status = layer->forward({.hidden_states = {wide.data(), DType::f32, 2, 3072}, .router_logits = {}},
                                    {.output = {narrow.data(), DType::f32, 2, 2880}});
  EXPECT_EQ(status.code, ErrorCode::wrong_shape);
  EXPECT_NE(status.text().find("[2, 2880]"), std::string_view::npos) << status.text();
  status = layer->forward({.hidden_states = {narrow.data(), DType::f32, 2, 2880}, .router_logits = {}},
                          {.output = {wide.data(), DType::f32, 2, 3072}});
  EXPECT_EQ(status.code, ErrorCode::wrong_shape);
  EXPECT_NE(status.text().find("[2, 3072]"), std::string_view::npos) << status.text();
}

TEST(L2, NothingIsWrittenBehindTheTrueWidths) {
  for (const CheckWay& way : usable_ways()) {
    SCOPED_TRACE(way.name());
    const LayerSpec& spec = check_shape("hidden-2688-shared");
    const auto layer = make_layer(spec, way, 3);
    const std::vector<float> x = inputs_of(spec, 3);
    constexpr float kGuard = 12345;
    std::vector<float> output(3 * 2688 + 512, kGuard);
    ASSERT_TRUE(layer
                    ->forward({.hidden_states = {x.data(), DType::f32, 3, 2688}, .router_logits = {}},
                              {.output = {output.data(), DType::f32, 3, 2688}})
                    .ok());
    for (std::size_t i = 3 * 2688; i < output.size(); ++i) ASSERT_EQ(output[i], kGuard);
  }
}

TEST(L3, PlannedAndRealOutputsAgreeForEveryTokenCount) {
  for (const NamedShape& shape : check_shapes()) {
    for (const CheckWay& way : usable_ways()) {
      SCOPED_TRACE(shape.name + " by " + way.name());
      const auto layer = make_layer(shape.spec, way, 7);
      for (const std::int64_t tokens : {std::int64_t{0}, std::int64_t{1}, std::int64_t{7}}) {
        const OutputType type = layer->plan().output(tokens);
        EXPECT_EQ(type.rows, tokens);
        EXPECT_EQ(type.cols, shape.spec.hidden);
        EXPECT_EQ(type.row_stride, shape.spec.hidden);
        EXPECT_EQ(type.col_stride, 1);
        // Every element of exactly this type is written, so that the fake shape is the real one.
        const float unset = std::numeric_limits<float>::infinity();
        std::vector<float> output(static_cast<std::size_t>(type.rows * type.row_stride), unset);
        const std::vector<float> x = inputs_of(shape.spec, tokens);
        const RunStatus status =
            layer->forward({.hidden_states = {x.data(), DType::f32, tokens, shape.spec.hidden}, .router_logits = {}},
                           {.output = {output.data(), type.dtype, type.rows, type.cols}});
        ASSERT_TRUE(status.ok()) << status.text();
        for (const float value : output) ASSERT_NE(value, unset);
      }
    }
  }
}

TEST(L3, OutputDtypeFollowsThePlan) {
  const LayerSpec& spec = check_shape("intermediate-720-scaled");
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    Deployment deployment;
    deployment.tokens = 2;
    deployment.input = dtype;
    deployment.wishes.backend = "reference";
    const Plan plan = motet::plan(spec, deployment, machine()).value();
    EXPECT_EQ(plan.output(2).dtype, dtype);
    const auto layer = Layer::create(plan, weights_of(spec));
    std::vector<float> any(static_cast<std::size_t>(2 * spec.hidden));
    const DType other = dtype == DType::f32 ? DType::bf16 : DType::f32;
    EXPECT_EQ(layer
                  ->forward({.hidden_states = {any.data(), dtype, 2, spec.hidden}, .router_logits = {}},
                            {.output = {any.data(), other, 2, spec.hidden}})
                  .code,
              ErrorCode::wrong_dtype);
    EXPECT_EQ(layer
                  ->forward({.hidden_states = {any.data(), other, 2, spec.hidden}, .router_logits = {}},
                            {.output = {any.data(), dtype, 2, spec.hidden}})
                  .code,
              ErrorCode::wrong_dtype);
  }
}

/// The layer by a way against the formulas, with given routing. The oracle's companions are in oracle_test.cpp.
void expect_formulas(const std::string& shape, const CheckWay& way) {
  SCOPED_TRACE(shape + " by " + way.name());
  const LayerSpec& spec = check_shape(shape);
  const std::vector<float> x = inputs_of(spec, 5);
  const Routing routing = routing_of(spec, 5);
  const auto layer = make_layer(spec, way, 5);
  const CheckRun run = run_given(*layer, x, routing);
  ASSERT_TRUE(run.status.ok()) << run.status.text();
  EXPECT_LE(distance(run.output, oracle(spec, *weights_of(spec), x, routing)), layer->plan().recipe.error_bound);
  EXPECT_EQ(run.index, routing.index);
  EXPECT_EQ(run.weights, routing.weights);  // given weights are taken as they are
}

TEST(L5, EveryTailEqualsTheFormulas) {
  for (const NamedShape& shape : check_shapes())
    for (const CheckWay& way : usable_ways()) expect_formulas(shape.name, way);
}

TEST(L5, TheScaleIsInTheTailOnlyWhenTheWeightsDoNotHoldIt) {
  const auto has_scale = [](const char* shape) {
    const Plan plan = plan_way(check_shape(shape), reference_way(), 1, machine()).value();
    int count = 0;
    for (const TailStep& step : plan.tail) count += step.op == TailOp::scale;
    return count;
  };
  EXPECT_EQ(has_scale("intermediate-720-scaled"), 1);
  EXPECT_EQ(has_scale("hidden-2688-shared"), 0);
}

TEST(L14, TheWeightActsOnTheInputOrInFinalizeNeverOnBoth) {
  for (const CheckWay& way : usable_ways()) {
    expect_formulas("weight-on-input", way);
    expect_formulas("intermediate-704", way);
  }
  EXPECT_EQ(plan_way(check_shape("weight-on-input"), reference_way(), 1, machine()).value().recipe.weight_site, WeightSite::input);
  EXPECT_EQ(plan_way(check_shape("intermediate-704"), reference_way(), 1, machine()).value().recipe.weight_site,
            WeightSite::finalize);
}

TEST(L14, SeveralExpertsEachGetTheirOwnWeightedInput) {
  LayerSpec spec = check_shape("weight-on-input");
  spec.top_k = 3;
  const std::vector<float> x = inputs_of(spec, 4);
  const Routing routing = routing_of(spec, 4);
  const auto layer = make_layer(spec, reference_way(), 4);
  const CheckRun run = run_given(*layer, x, routing);
  ASSERT_TRUE(run.status.ok()) << run.status.text();
  EXPECT_LE(distance(run.output, oracle(spec, *weights_of(spec), x, routing)), layer->plan().recipe.error_bound);
}

}  // namespace
}  // namespace motet::laws
