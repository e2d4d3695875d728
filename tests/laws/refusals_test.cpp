// SPDX-License-Identifier: Apache-2.0
// L11 refuse early, by name, L18 input is hostile, L20 no positional options: the layer's part.
#include <cstring>
#include <type_traits>

#include "fixture.h"
#include "motet/motet.hpp"

namespace motet::laws {
namespace {

std::string first_code(const LayerSpec& spec, const CheckWay& way) {
  const PlanResult result = plan_way(spec, way, 2, machine());
  return result.refusals.empty() ? "" : result.refusals.front().code;
}

TEST(L11, WishesThatAreNotBuiltAreRefusedByName) {
  const LayerSpec& spec = check_shape("intermediate-704");
  EXPECT_EQ(first_code(spec, {.backend = "cuda", .target = ""}), "backend_unknown");
  EXPECT_EQ(first_code(spec, {.backend = "cpu", .target = "avx9"}), "target_unknown");
  EXPECT_EQ(first_code(spec, {.backend = "reference", .target = "", .residence = Residence::packed}), "residence_not_built");
  EXPECT_EQ(first_code(spec, {.backend = "reference", .target = "generic"}), "backend_has_no_targets");
  EXPECT_EQ(first_code(spec, reference_way()), "");
}

TEST(L11, APlanThatDoesNotFitIsNotCreated) {
  const LayerSpec& spec = check_shape("intermediate-704");
  Deployment deployment;
  deployment.memory_limit = 1 << 16;
  const PlanResult result = plan(spec, deployment, machine());
  ASSERT_TRUE(result.plan.has_value());
  EXPECT_EQ(code_of([&] { Layer::create(*result.plan, weights_of(spec)); }), ErrorCode::would_not_fit);
}

TEST(L18, WeightsOfAnotherLayerAreRefused) {
  const LayerSpec& spec = check_shape("intermediate-704");
  const Plan plan = plan_way(spec, reference_way(), 2, machine()).value();
  LayerSpec other = spec;
  other.layer = 3;
  std::string text;
  EXPECT_EQ(code_of([&] { Layer::create(plan, synthetic_weights(check_shape("intermediate-720-scaled"), 1)); }, &text),
            ErrorCode::wrong_shape);
  EXPECT_EQ(code_of([&] { Layer::create(plan, nullptr); }), ErrorCode::invalid_argument);
  auto missing = std::const_pointer_cast<LayerWeights>(synthetic_weights(spec, 1));
  missing->experts.pop_back();
  EXPECT_EQ(code_of([&] { Layer::create(plan, missing); }, &text), ErrorCode::wrong_shape);
  EXPECT_NE(text.find("7"), std::string::npos) << text;
  auto narrow = std::const_pointer_cast<LayerWeights>(synthetic_weights(spec, 1));
  narrow->experts[2].down.cols -= 1;
  EXPECT_EQ(code_of([&] { Layer::create(plan, narrow); }, &text), ErrorCode::wrong_shape);
  EXPECT_NE(text.find("expert 2"), std::string::npos) << text;
}

TEST(L18, VectorsThatTheSpecCallsForMustBeThere) {
  const LayerSpec& spec = check_shape("intermediate-1856-gated-shared");
  const Plan plan = plan_way(spec, reference_way(), 2, machine()).value();
  auto weights = std::const_pointer_cast<LayerWeights>(synthetic_weights(spec, 1));
  weights->shared_gate = {};
  std::string text;
  EXPECT_EQ(code_of([&] { Layer::create(plan, weights); }, &text), ErrorCode::wrong_shape);
  EXPECT_NE(text.find("shared gate"), std::string::npos) << text;
}

TEST(L18, APlanThatWasTamperedWithIsRefused) {
  const LayerSpec& spec = check_shape("intermediate-704");
  const auto create_with = [&](void (*tamper)(Plan&)) {
    Plan plan = plan_way(spec, reference_way(), 2, machine()).value();
    tamper(plan);
    return code_of([&] { Layer::create(plan, weights_of(spec)); });
  };
  EXPECT_EQ(create_with([](Plan&) {}), ErrorCode::ok);
  EXPECT_EQ(create_with([](Plan& plan) { plan.workspace.areas.clear(); }), ErrorCode::invalid_argument);
  EXPECT_EQ(create_with([](Plan& plan) { plan.workspace.areas.back().offset = plan.workspace.bytes; }),
            ErrorCode::invalid_argument);
  EXPECT_EQ(create_with([](Plan& plan) { plan.deployment.tokens = 1 << 20; }), ErrorCode::invalid_argument);
  EXPECT_EQ(create_with([](Plan& plan) { plan.widths.clear(); }), ErrorCode::invalid_argument);
  EXPECT_EQ(create_with([](Plan& plan) { plan.backend = "none"; }), ErrorCode::invalid_argument);
  EXPECT_EQ(create_with([](Plan& plan) { plan.ranks.clear(); }), ErrorCode::invalid_argument);
  EXPECT_EQ(create_with([](Plan& plan) { plan.fingerprint.clear(); }), ErrorCode::invalid_argument);
  EXPECT_EQ(create_with([](Plan& plan) { plan.deployment.tokens = 0; }), ErrorCode::invalid_argument);  // cannot be planned
}

TEST(L16, APlanWhoseMemoryWouldBeOverrunIsRefusedByItsFirstWrongField) {
  const LayerSpec& spec = check_shape("intermediate-704");
  const CheckWay way{.backend = "cpu", .target = "", .arithmetic = Arithmetic::exact};
  const auto refusal = [&](void (*tamper)(Plan&)) {
    Plan plan = plan_way(spec, way, 2, machine()).value();
    tamper(plan);
    std::string text;
    EXPECT_EQ(code_of([&] { Layer::create(plan, weights_of(spec)); }, &text), ErrorCode::invalid_argument);
    return text;
  };
  const auto expect_named = [](const std::string& text, const char* field) {
    EXPECT_NE(text.find(std::string("but ") + field + " is "), std::string::npos) << text;
  };
  expect_named(refusal([](Plan& plan) { plan.threads += 62; }), "threads");
  expect_named(refusal([](Plan& plan) { plan.recipe.activation = DType::bf16; }), "recipe.activation");
  expect_named(refusal([](Plan& plan) {
                 for (Width& width : plan.widths)
                   if (width.axis == Axis::hidden) width.stored = width.valid + 1;  // below the kernels' k_unit
               }),
               "widths[0].stored");
  const std::string scratch = refusal([](Plan& plan) {
    for (Area& area : plan.workspace.areas)
      if (area.id == AreaId::scratch) area.bytes = 64;
  });
  EXPECT_NE(scratch.find("].bytes is 64 where plan() gives"), std::string::npos) << scratch;
}

TEST(L11, ASubstitutedPlanIsCreatedAndStillCheckedInFull) {
  const LayerSpec& spec = check_shape("intermediate-704");
  Deployment deployment;
  deployment.tokens = 2;
  deployment.wishes = {.backend = "reference", .target = "generic", .residence = Residence::packed, .allow_substitution = true};
  Plan plan = motet::plan(spec, deployment, machine()).value();
  EXPECT_EQ(plan.deployment.wishes.target, plan.target) << "the deployment as planned holds what was taken";
  EXPECT_EQ(plan.deployment.wishes.backend, plan.backend);
  EXPECT_EQ(code_of([&] { Layer::create(plan, weights_of(spec)); }), ErrorCode::ok);
  plan.recipe.error_bound = 1;
  EXPECT_EQ(code_of([&] { Layer::create(plan, weights_of(spec)); }), ErrorCode::invalid_argument);
}

TEST(L11, APlanForATargetThatThisMachineLacksIsNotCreated) {
  Environment elsewhere = machine();
  std::string missing;
  for (TargetFacts& target : elsewhere.targets) {
    if (target.usable) continue;
    missing = target.name;
    target.compiled = target.usable = true;
  }
  if (missing.empty()) GTEST_SKIP() << "this machine runs every target of this build";
  const LayerSpec& spec = check_shape("intermediate-704");
  const Plan plan = plan_way(spec, {.backend = "cpu", .target = missing}, 2, elsewhere).value();
  EXPECT_EQ(code_of([&] { Layer::create(plan, weights_of(spec)); }), ErrorCode::not_supported);
}

class HostileForward : public testing::Test {
 protected:
  const LayerSpec& spec = check_shape("intermediate-704");
  std::unique_ptr<Layer> layer = make_layer(spec, reference_way(), 2);
  std::vector<float> x = inputs_of(spec, 2), y = std::vector<float>(x.size());
  Routing routing = routing_of(spec, 2);
  ForwardInput input{.hidden_states = {x.data(), DType::f32, 2, spec.hidden}, .router_logits = {}};
  ForwardOutput output{.output = {y.data(), DType::f32, 2, spec.hidden}};

  ErrorCode code() { return layer->forward(input, output).code; }
};

TEST_F(HostileForward, L18NullPointersAndHalfGivenRoutingAreNamed) {
  EXPECT_EQ(code(), ErrorCode::ok);
  input.hidden_states.data = nullptr;
  EXPECT_EQ(code(), ErrorCode::invalid_argument);
  input.hidden_states.data = x.data();
  output.output.data = nullptr;
  EXPECT_EQ(code(), ErrorCode::invalid_argument);
  output.output.data = y.data();
  input.top_k_index = routing.index.data();
  EXPECT_EQ(code(), ErrorCode::invalid_argument);
  input.top_k_index = nullptr;
  input.top_k_weights = routing.weights.data();
  EXPECT_EQ(code(), ErrorCode::invalid_argument);
}

TEST_F(HostileForward, L18LogitsOfAnotherShapeOrBesideGivenRoutingAreRefused) {
  std::vector<float> logits(16, 0.5f);
  input.router_logits = {logits.data(), DType::f32, 2, 8};
  EXPECT_EQ(code(), ErrorCode::ok);
  input.router_logits.cols = 7;
  EXPECT_EQ(code(), ErrorCode::wrong_shape);
  input.router_logits = {logits.data(), DType::bf16, 2, 8};
  EXPECT_EQ(code(), ErrorCode::wrong_dtype);
  input.router_logits = {nullptr, DType::f32, 2, 8};
  EXPECT_EQ(code(), ErrorCode::invalid_argument);
  input.router_logits = {logits.data(), DType::f32, 2, 8};
  input.top_k_index = routing.index.data();
  input.top_k_weights = routing.weights.data();
  EXPECT_EQ(code(), ErrorCode::invalid_argument);
}

TEST_F(HostileForward, L18NegativeCountsAreRefused) {
  input.hidden_states.rows = -1;
  output.output.rows = -1;
  EXPECT_EQ(code(), ErrorCode::wrong_shape);
}

TEST(L18, WeightsWithoutARouterNeedGivenRouting) {
  const LayerSpec& spec = check_shape("intermediate-704");
  auto weights = std::const_pointer_cast<LayerWeights>(synthetic_weights(spec, 1));
  weights->router = {};
  const auto layer = Layer::create(plan_way(spec, reference_way(), 2, machine()).value(), weights);
  EXPECT_EQ(run_tokens(*layer, inputs_of(spec, 2), 0, 2).status.code, ErrorCode::invalid_argument);
  EXPECT_TRUE(run_given(*layer, inputs_of(spec, 2), routing_of(spec, 2)).status.ok());
}

TEST(L18, HashRoutingReadsIdsInRangeOnly) {
  LayerSpec spec = check_shape("intermediate-720-scaled");
  spec.router = {};
  spec.router.score = RouterScore::sqrt_softplus;
  spec.router.selection = RouterSelection::hash;
  spec.router.normalize = RouterNormalize::sum;
  auto weights = std::const_pointer_cast<LayerWeights>(synthetic_weights(spec, 1));
  std::vector<std::int64_t> table{0, 1, 2, 3, 4, 0, 1, 9};  // four token ids; the last names expert 9 of 5
  weights->token_table = reinterpret_cast<const std::byte*>(table.data());
  weights->token_table_dtype = DType::i64;
  weights->vocabulary = 4;
  const auto layer = Layer::create(plan_way(spec, reference_way(), 2, machine()).value(), weights);
  const std::vector<float> x = inputs_of(spec, 2);
  std::vector<float> y(x.size());
  std::vector<std::int32_t> index(4);
  std::vector<std::int64_t> ids{2, 0};
  ForwardInput input{.hidden_states = {x.data(), DType::f32, 2, spec.hidden}, .router_logits = {}};
  ForwardOutput output{.output = {y.data(), DType::f32, 2, spec.hidden}, .top_k_index = index.data()};
  EXPECT_EQ(layer->forward(input, output).code, ErrorCode::invalid_argument);
  input.token_ids = ids.data();
  ASSERT_TRUE(layer->forward(input, output).ok());
  EXPECT_EQ(index, (std::vector<std::int32_t>{4, 0, 0, 1}));
  for (const std::int64_t bad : {std::int64_t{4}, std::int64_t{-1}, std::int64_t{3}}) {
    ids[1] = bad;
    EXPECT_EQ(layer->forward(input, output).code, ErrorCode::id_out_of_range) << bad;
  }
}

TEST(L20, OptionsAreStructsWithNamedMembers) {
  static_assert(std::is_aggregate_v<Deployment> && std::is_aggregate_v<Wishes> && std::is_aggregate_v<LayerSpec>);
  static_assert(std::is_aggregate_v<ForwardInput> && std::is_aggregate_v<ForwardOutput> && std::is_aggregate_v<Hooks>);
  static_assert(std::is_aggregate_v<CheckWishes> && std::is_aggregate_v<RateWishes>);
  const Deployment deployment{.tokens = 3, .wishes = {.backend = "reference", .threads = 1}};
  EXPECT_EQ(deployment.tp, 1);  // what is not named keeps its default
  EXPECT_EQ(deployment.wishes.arithmetic, Arithmetic::bf16);
}

}  // namespace
}  // namespace motet::laws
