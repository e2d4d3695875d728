// SPDX-License-Identifier: Apache-2.0
// L12 the result type depends on the plan only: hooks and unfinalized rows.
#include <cmath>

#include "fixture.h"

namespace motet::laws {
namespace {

CheckWay with_finalize(CheckWay way, Finalize finalize) {
  way.finalize = finalize;
  return way;
}

bool can(const LayerSpec& spec, const CheckWay& way) { return plan_way(spec, way, 5, machine()).plan.has_value(); }

TEST(L12, IdentityHookEqualsBuiltinBitForBit) { hold_everywhere("identity_hook_is_builtin"); }

HookExtent identity_batch(void*, const Unfinalized& batch, float* out) noexcept {
  for (std::int64_t token = 0; token < batch.tokens; ++token) {
    float* sum = out + token * batch.width;
    for (std::int64_t i = 0; i < batch.width; ++i) sum[i] = 0;
    for (std::int64_t k = 0; k < batch.top_k; ++k) {
      const std::int64_t choice = token * batch.top_k + k;
      if (batch.row_of[choice] < 0) continue;
      const float* row = batch.rows + batch.row_of[choice] * batch.row_stride;
      for (std::int64_t i = 0; i < batch.width; ++i) {
        const float term = batch.weight[choice] * row[i];
        sum[i] = sum[i] + term;
      }
    }
  }
  return {batch.tokens, batch.width};
}

TEST(L12, BatchHookGetsTheTripleAndItsSumsAreTheResult) {
  for (const NamedShape& shape : check_shapes()) {
    for (const CheckWay& way : usable_ways()) {
      if (!can(shape.spec, with_finalize(way, Finalize::hook))) continue;
      SCOPED_TRACE(shape.name + " by " + way.name());
      const std::vector<float> x = inputs_of(shape.spec, 5);
      const auto builtin = make_layer(shape.spec, way, 5),
                 hooked = make_layer(shape.spec, with_finalize(way, Finalize::hook), 5, {.batch = identity_batch}, true);
      const CheckRun expected = run_tokens(*builtin, x, 0, 5), run = run_tokens(*hooked, x, 0, 5);
      ASSERT_TRUE(run.status.ok()) << run.status.text();
      EXPECT_TRUE(same_bits(run.output, expected.output));
    }
  }
}

TEST(L12, BatchHookOfAnotherExtentIsNamedAtRunTime) {
  const LayerSpec& spec = check_shape("intermediate-720-scaled");
  const BatchHook short_hook = [](void*, const Unfinalized& batch, float*) noexcept {
    return HookExtent{batch.tokens, batch.width - 1};
  };
  const auto layer = make_layer(spec, with_finalize(reference_way(), Finalize::hook), 2, {.batch = short_hook});
  const CheckRun run = run_tokens(*layer, inputs_of(spec, 2), 0, 2);
  EXPECT_EQ(run.status.code, ErrorCode::hook_mismatch);
  EXPECT_NE(run.status.text().find("[2, 95]"), std::string_view::npos) << run.status.text();
}

TEST(L12, AHookThatChangesRowsChangesTheResult) {
  const LayerSpec& spec = check_shape("intermediate-704");
  const RowHook doubling = [](void*, const HookRow& row) noexcept {
    for (std::int64_t i = 0; i < row.width; ++i) row.row[i] = 2 * (row.row[i] * row.weight);
  };
  const std::vector<float> x = inputs_of(spec, 3);
  const auto builtin = make_layer(spec, reference_way(), 3),
             hooked = make_layer(spec, with_finalize(reference_way(), Finalize::hook), 3, {.row = doubling});
  CheckRun expected = run_tokens(*builtin, x, 0, 3);
  for (float& value : expected.output) value *= 2;  // exact
  EXPECT_TRUE(same_bits(run_tokens(*hooked, x, 0, 3).output, expected.output));
}

TEST(L12, HooksAndPlansThatDoNotBelongTogetherAreRefusedAtCreation) {
  const LayerSpec& spec = check_shape("intermediate-704");
  const Plan builtin = plan_way(spec, reference_way(), 2, machine()).value();
  const Plan hook = plan_way(spec, with_finalize(reference_way(), Finalize::hook), 2, machine()).value();
  const auto create = [&](const Plan& plan, const Hooks& hooks) {
    return code_of([&] { Layer::create(plan, weights_of(spec), hooks); });
  };
  EXPECT_EQ(create(builtin, {.row = identity_hook}), ErrorCode::hook_mismatch);
  EXPECT_EQ(create(builtin, {.batch = identity_batch}), ErrorCode::hook_mismatch);
  EXPECT_EQ(create(hook, {}), ErrorCode::hook_mismatch);
  EXPECT_EQ(create(hook, {.row = identity_hook, .batch = identity_batch}), ErrorCode::hook_mismatch);
  EXPECT_EQ(create(hook, {.row = identity_hook}), ErrorCode::ok);
}

/// Runs an unfinalized layer and sums its triple as the built-in finalize does.
std::vector<float> sum_unfinalized(Layer& layer, const std::vector<float>& x, std::int64_t tokens) {
  const LayerSpec& spec = layer.plan().spec;
  Unfinalized triple;
  ForwardOutput output;
  output.unfinalized = &triple;
  const RunStatus status =
      layer.forward({.hidden_states = {x.data(), DType::f32, tokens, spec.hidden}, .router_logits = {}}, output);
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(triple.tokens, tokens);
  EXPECT_EQ(triple.top_k, spec.top_k);
  EXPECT_EQ(triple.width, spec.dispatch_width());
  EXPECT_EQ(triple.row_count, layer.stats().rows);
  EXPECT_EQ(triple.row_stride, layer.plan().stored(Axis::down_out));
  std::vector<float> sums(static_cast<std::size_t>(tokens * triple.width));
  identity_batch(nullptr, triple, sums.data());
  return sums;
}

TEST(L12, UnfinalizedRowsSumToTheBuiltinResult) {
  const LayerSpec& spec = check_shape("intermediate-704");  // its tail only rounds, so that routed sums are the output
  const std::vector<float> x = inputs_of(spec, 5);
  for (const CheckWay& way : usable_ways()) {
    if (!can(spec, with_finalize(way, Finalize::unfinalized))) continue;
    SCOPED_TRACE(way.name());
    const auto builtin = make_layer(spec, way, 5), open = make_layer(spec, with_finalize(way, Finalize::unfinalized), 5, {}, true);
    EXPECT_TRUE(same_bits(sum_unfinalized(*open, x, 5), run_tokens(*builtin, x, 0, 5).output));
    EXPECT_TRUE(sum_unfinalized(*open, {}, 0).empty());
  }
}

TEST(L12, LayersOfBothKindsAlternate) {
  const LayerSpec& spec = check_shape("intermediate-704");
  const std::vector<float> x = inputs_of(spec, 5);
  for (const char* backend : {"cpu", "reference", "twin_wide"}) {
    SCOPED_TRACE(backend);
    const CheckWay way{.backend = backend, .target = ""};
    const auto builtin = make_layer(spec, way, 5, {}, true),
               open = make_layer(spec, with_finalize(way, Finalize::unfinalized), 5, {}, true);
    const std::vector<float> expected = run_tokens(*builtin, x, 0, 5).output;
    for (int round = 0; round < 3; ++round) {
      EXPECT_TRUE(same_bits(sum_unfinalized(*open, x, 5), expected));
      EXPECT_TRUE(same_bits(run_tokens(*builtin, x, 0, 5).output, expected));
    }
  }
}

TEST(L12, TheOutputFormIsThePlansNeverTheCalls) {
  const LayerSpec& spec = check_shape("intermediate-704");
  const std::vector<float> x = inputs_of(spec, 2);
  std::vector<float> values(x.size());
  Unfinalized triple;
  const ForwardInput input{.hidden_states = {x.data(), DType::f32, 2, spec.hidden}, .router_logits = {}};
  ForwardOutput both;
  both.output = {values.data(), DType::f32, 2, spec.hidden};
  both.unfinalized = &triple;
  const auto builtin = make_layer(spec, reference_way(), 2),
             open = make_layer(spec, with_finalize(reference_way(), Finalize::unfinalized), 2);
  EXPECT_EQ(builtin->forward(input, both).code, ErrorCode::invalid_argument);
  EXPECT_EQ(open->forward(input, both).code, ErrorCode::invalid_argument);
  EXPECT_EQ(open->forward(input, {.output = both.output}).code, ErrorCode::invalid_argument);
}

TEST(L12, BackendsThatCannotLeaveRowsOpenSayThatWhenPlanning) {
  for (const Finalize finalize : {Finalize::unfinalized, Finalize::hook}) {
    const PlanResult result = plan_way(check_shape("intermediate-704"),
                                       with_finalize({.backend = "twin_finalized", .target = ""}, finalize), 2, machine());
    ASSERT_FALSE(result.plan.has_value());
    EXPECT_EQ(result.refusals.front().code, "backend_finalizes_itself");
  }
  for (const Finalize finalize : {Finalize::unfinalized, Finalize::hook})
    EXPECT_FALSE(plan_way(check_shape("weight-on-input"), with_finalize(reference_way(), finalize), 2, machine()).plan.has_value());
}

}  // namespace
}  // namespace motet::laws
