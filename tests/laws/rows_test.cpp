// SPDX-License-Identifier: Apache-2.0
// L4 padding is defined, L7 one invalid id, L8 rows say whether they are valid, L9 zero is a number of tokens.
#include <cmath>
#include <limits>

#include "fixture.h"

namespace motet::laws {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(L4, PoisonedPaddingAndDeadAreasChangeNoBit) { hold_everywhere("poison_changes_nothing"); }

TEST(L4, GateAndUpHalvesArePaddedApart) {
  const LayerSpec& spec = check_shape("intermediate-704");
  const Plan plan = plan_way(spec, {.backend = "twin_wide", .target = ""}, 4, machine()).value();
  ASSERT_NE(plan.width(Axis::gate), nullptr);
  ASSERT_NE(plan.width(Axis::up), nullptr);
  EXPECT_EQ(plan.width(Axis::gate)->valid, 704);
  EXPECT_EQ(plan.width(Axis::up)->valid, 704);
  EXPECT_GT(plan.stored(Axis::gate), 704);
  EXPECT_EQ(plan.stored(Axis::gate), plan.stored(Axis::up));
}

TEST(L7, ForeignAbsentIdsAreTranslatedAtTheBoundary) {
  const LayerSpec& spec = check_shape("hidden-2688-shared");
  const std::vector<float> x = inputs_of(spec, 3);
  Routing own = routing_of(spec, 3);
  own.index[1] = own.index[4] = own.index[5] = kAbsent;  // token 2 has no expert left
  const auto layer = make_layer(spec, reference_way(), 3);
  const CheckRun expected = run_given(*layer, x, own);
  ASSERT_TRUE(expected.status.ok()) << expected.status.text();
  for (const std::int32_t foreign : {4, 1000, std::numeric_limits<std::int32_t>::max(), -5}) {
    Routing theirs = own;
    theirs.absent_id = foreign;
    for (std::int32_t& id : theirs.index)
      if (id == kAbsent) id = foreign;
    const CheckRun run = run_given(*layer, x, theirs);
    ASSERT_TRUE(run.status.ok()) << run.status.text();
    EXPECT_TRUE(same_bits(run.output, expected.output)) << foreign;
    EXPECT_EQ(run.index, own.index);
  }
  EXPECT_LE(distance(expected.output, oracle(spec, *weights_of(spec), x, own)), layer->plan().recipe.error_bound);
}

TEST(L7, IdsThatNameNothingAreRefusedBeforeAnyWork) {
  const LayerSpec& spec = check_shape("zero-experts");  // four experts and four zero experts: 0..7
  const auto layer = make_layer(spec, reference_way(), 2);
  const std::vector<float> x = inputs_of(spec, 2);
  const auto run_with = [&](std::int32_t id, std::int32_t absent_id) {
    Routing routing{.index = {0, 1, 2, 3, id, 5}, .weights = std::vector<float>(6, 0.5f), .absent_id = absent_id};
    CheckRun run = run_given(*layer, x, routing);
    if (!run.status.ok()) {
      for (const float value : run.output) EXPECT_EQ(value, 0);
    }
    return run.status;
  };
  EXPECT_TRUE(run_with(7, kAbsent).ok());
  EXPECT_TRUE(run_with(kAbsent, kAbsent).ok());
  for (const std::int32_t id : {8, -2, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()}) {
    const RunStatus status = run_with(id, kAbsent);
    EXPECT_EQ(status.code, ErrorCode::id_out_of_range);
    EXPECT_NE(status.text().find("token 1 has " + std::to_string(id)), std::string_view::npos) << status.text();
  }
  EXPECT_EQ(run_with(kAbsent, 99).code, ErrorCode::id_out_of_range);  // -1 was not declared
  EXPECT_EQ(run_with(0, 3).code, ErrorCode::invalid_argument);        // an absent id that names an expert
  EXPECT_EQ(run_with(3, kAbsent).code, ErrorCode::duplicate_id);
}

TEST(L8, AbsentChoicesAreSkippedNotMultipliedByZero) {
  const LayerSpec& spec = check_shape("intermediate-704");
  const std::vector<float> x = inputs_of(spec, 2);
  Routing routing = routing_of(spec, 2);
  for (std::size_t k = 3; k < 8; ++k) {
    routing.index[k] = kAbsent;
    routing.weights[k] = kNaN;
  }
  for (const CheckWay& way : usable_ways()) {
    SCOPED_TRACE(way.name());
    const auto layer = make_layer(spec, way, 2, {}, true);
    const CheckRun run = run_given(*layer, x, routing);
    ASSERT_TRUE(run.status.ok()) << run.status.text();
    for (const float value : run.output) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(L8, NaNAndInfinityStayInTheirOwnToken) {
  for (const NamedShape& shape : check_shapes()) {
    const LayerSpec& spec = shape.spec;
    for (const CheckWay& way : usable_ways()) {
      SCOPED_TRACE(shape.name + " by " + way.name());
      const auto layer = make_layer(spec, way, 6, {}, true);
      std::vector<float> x = inputs_of(spec, 6);
      const CheckRun clean = run_tokens(*layer, x, 0, 6);
      x[static_cast<std::size_t>(1 * spec.hidden + 3)] = kNaN;
      x[static_cast<std::size_t>(4 * spec.hidden)] = std::numeric_limits<float>::infinity();
      const CheckRun dirty = run_tokens(*layer, x, 0, 6);
      ASSERT_TRUE(dirty.status.ok()) << dirty.status.text();
      for (const std::int64_t token : {0, 2, 3, 5}) {
        // Same routing and finite: the bits may depend on how many tokens an expert got (L15), the value within its bound may not.
        double error = 0, size = 0;
        for (std::int64_t i = token * spec.hidden; i < (token + 1) * spec.hidden; ++i) {
          const auto at = static_cast<std::size_t>(i);
          ASSERT_TRUE(std::isfinite(dirty.output[at]));
          error += std::pow(dirty.output[at] - clean.output[at], 2);
          size += std::pow(clean.output[at], 2);
        }
        EXPECT_LE(std::sqrt(error / size), 2 * layer->plan().recipe.error_bound);
      }
      bool all_nan = true;
      for (std::int64_t i = spec.hidden; i < 2 * spec.hidden; ++i)
        all_nan = all_nan && std::isnan(dirty.output[static_cast<std::size_t>(i)]);
      EXPECT_TRUE(all_nan);
      for (std::int64_t k = 0; k < spec.top_k; ++k) {
        const std::int32_t id = dirty.index[static_cast<std::size_t>(spec.top_k + k)];
        EXPECT_TRUE(id >= 0 && id < spec.experts + spec.router.zero_experts) << id;
      }
    }
  }
}

TEST(L9, ZeroTokensRunEveryStage) { hold_everywhere("zero_tokens_run"); }

TEST(L9, ExpertsWithoutTokensAndOneWithAllAreNumbersLikeOthers) {
  const LayerSpec& spec = check_shape("intermediate-720-scaled");
  const std::vector<float> x = inputs_of(spec, 9);
  for (const CheckWay& way : usable_ways()) {
    SCOPED_TRACE(way.name());
    const auto layer = make_layer(spec, way, 9, {}, true);
    Routing one{.index = std::vector<std::int32_t>(18, kAbsent), .weights = std::vector<float>(18, 0.75f)};
    for (std::size_t token = 0; token < 9; ++token) one.index[2 * token + 1] = 4;
    const CheckRun run = run_given(*layer, x, one);
    ASSERT_TRUE(run.status.ok()) << run.status.text();
    EXPECT_LE(distance(run.output, oracle(spec, *weights_of(spec), x, one)), layer->plan().recipe.error_bound);
    EXPECT_EQ(layer->stats().experts_used, 1);
    EXPECT_EQ(layer->expert_load()[4], 9);
    EXPECT_EQ(layer->expert_load()[0], 0);
    Routing none{.index = std::vector<std::int32_t>(18, kAbsent), .weights = std::vector<float>(18, kNaN)};
    const CheckRun nobody = run_given(*layer, x, none);
    ASSERT_TRUE(nobody.status.ok()) << nobody.status.text();
    for (const float value : nobody.output) ASSERT_EQ(value, 0);
    EXPECT_EQ(layer->stats().rows, 0);
  }
}

}  // namespace
}  // namespace motet::laws
