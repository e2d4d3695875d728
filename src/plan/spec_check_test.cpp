// SPDX-License-Identifier: Apache-2.0
#include "plan/spec_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "plan/fake_catalog.h"
#include "plan/refusals.h"

namespace motet {
namespace {

struct Case {
  const char* code;
  void (*change)(LayerSpec&, Deployment&);
};

const Case kBroken[] = {
    {"extent_not_positive", [](LayerSpec& s, Deployment&) { s.hidden = 0; }},
    {"extent_not_positive", [](LayerSpec& s, Deployment&) { s.intermediate = -1; }},
    {"extent_not_positive", [](LayerSpec& s, Deployment&) { s.experts = 0; }},
    {"extent_not_positive", [](LayerSpec& s, Deployment&) { s.top_k = 0; }},
    {"extent_not_positive", [](LayerSpec& s, Deployment&) { s.latent = -1024; }},
    {"extent_not_positive", [](LayerSpec& s, Deployment&) { s.router.groups = 0; }},
    {"extent_not_positive", [](LayerSpec& s, Deployment&) { s.router.zero_experts = -1; }},
    {"extent_not_positive", [](LayerSpec&, Deployment& d) { d.tokens = 0; }},
    {"extent_not_positive", [](LayerSpec&, Deployment& d) { d.chunk_tokens = -1; }},
    {"extent_not_positive", [](LayerSpec&, Deployment& d) { d.tokens = std::numeric_limits<std::int64_t>::min(); }},
    {"parallel_degree", [](LayerSpec&, Deployment& d) { d.tp = 0; }},
    {"parallel_degree", [](LayerSpec&, Deployment& d) { d.ep = -3; }},
    {"ranks_too_many", [](LayerSpec&, Deployment& d) { d.ep = std::int64_t{1} << 40; }},
    {"ranks_too_many", [](LayerSpec&, Deployment& d) { d.tp = d.ep = std::int64_t{1} << 32; }},
    {"input_dtype", [](LayerSpec&, Deployment& d) { d.input = DType::f64; }},
    {"threads", [](LayerSpec&, Deployment& d) { d.wishes.threads = -1; }},
    {"memory_limit", [](LayerSpec&, Deployment& d) { d.memory_limit = -1; }},
    {"wish_out_of_range", [](LayerSpec&, Deployment& d) { d.wishes.arithmetic = static_cast<Arithmetic>(9); }},
    {"too_large", [](LayerSpec& s, Deployment&) { s.hidden = std::int64_t{1} << 62; }},
    {"too_large", [](LayerSpec& s, Deployment&) { s.intermediate = std::numeric_limits<std::int64_t>::max(); }},
    {"too_large", [](LayerSpec& s, Deployment&) { s.experts = std::numeric_limits<std::int64_t>::max(); }},
    {"too_large", [](LayerSpec& s, Deployment&) { s.router.zero_experts = std::numeric_limits<std::int64_t>::max(); }},
    {"too_large", [](LayerSpec&, Deployment& d) { d.tokens = std::numeric_limits<std::int64_t>::max(); }},
    {"too_large", [](LayerSpec& s, Deployment&) { s.shared.intermediate = std::int64_t{1} << 60; }},
    {"too_many_rows", [](LayerSpec&, Deployment& d) { d.tokens = std::int64_t{1} << 30; }},
    {"too_many_experts", [](LayerSpec& s, Deployment&) { s.experts = std::int64_t{1} << 31; }},
    {"activation_gate", [](LayerSpec& s, Deployment&) { s.activation.gated = false; }},
    {"activation_gate", [](LayerSpec& s, Deployment&) { s.activation = {.kind = ActivationKind::relu2, .gated = true}; }},
    {"activation_limits",
     [](LayerSpec& s, Deployment&) { s.activation = {.kind = ActivationKind::relu2, .gated = false, .alpha = 1.7}; }},
    {"activation_limits", [](LayerSpec& s, Deployment&) { s.activation = {.kind = ActivationKind::situ, .alpha = 4, .limit = 0}; }},
    {"activation_limits", [](LayerSpec& s, Deployment&) { s.activation.limit = -7; }},
    {"not_finite", [](LayerSpec& s, Deployment&) { s.activation.limit = std::numeric_limits<double>::infinity(); }},
    {"format_unknown", [](LayerSpec& s, Deployment&) { s.down.format = "mxfp5"; }},
    {"block_size", [](LayerSpec& s, Deployment&) { s.gate_up.block_cols = 16; }},
    {"block_size", [](LayerSpec& s, Deployment&) { s.gate_up.block_rows = 2; }},
    {"block_size", [](LayerSpec& s, Deployment&) { s.gate_up = fake::projection("bf16"), s.gate_up.block_cols = 128; }},
    {"block_size", [](LayerSpec& s, Deployment&) { s.gate_up = fake::projection("fp8_block"), s.gate_up.block_rows = -128; }},
    {"reduction_not_whole", [](LayerSpec& s, Deployment&) { s.hidden = 2896; }},
    {"reduction_not_whole", [](LayerSpec& s, Deployment&) { s.intermediate = 2888; }},
    {"shared_projection", [](LayerSpec& s, Deployment&) { s.shared.gate = true; }},
    {"format_unknown", [](LayerSpec& s, Deployment&) { s.shared.intermediate = 64; }},
    {"format_unknown", [](LayerSpec& s, Deployment&) { s.latent = 1024; }},
    {"latent_projection", [](LayerSpec& s, Deployment&) { s.latent_norm = true; }},
    {"latent_projection",
     [](LayerSpec& s, Deployment&) {
       s.latent = 1024, s.latent_in = s.latent_out = fake::projection("bf16"), s.latent_in.bias = true;
     }},
    {"top_k_exceeds_experts", [](LayerSpec& s, Deployment&) { s.top_k = 33; }},
    {"groups", [](LayerSpec& s, Deployment&) { s.router.groups = 5; }},
    {"groups_kept", [](LayerSpec& s, Deployment&) { s.router.groups = 4, s.router.groups_kept = 5; }},
    {"top_k_exceeds_groups", [](LayerSpec& s, Deployment&) { s.router.groups = 16, s.router.groups_kept = 1; }},
    {"group_too_small", [](LayerSpec& s, Deployment&) { s.router.groups = 32, s.router.groups_kept = 8; }},
    {"sparsemixer_top_k", [](LayerSpec& s, Deployment&) { s.router.selection = RouterSelection::sparsemixer; }},
    {"zero_expert_kind", [](LayerSpec& s, Deployment&) { s.router.zero_experts = 4; }},
    {"zero_expert_kind", [](LayerSpec& s, Deployment&) { s.router.zero_expert_kind = ZeroExpertKind::drop; }},
    {"zero_expert_scale",
     [](LayerSpec& s, Deployment&) {
       s.router.zero_experts = 4, s.router.zero_expert_kind = ZeroExpertKind::identity, s.router.scale = 6,
       s.router.scale_site = ScaleSite::routed_sum;
     }},
    {"weight_on_input_top_k", [](LayerSpec& s, Deployment&) { s.router.weight_site = WeightSite::input; }},
    {"router_range", [](LayerSpec& s, Deployment&) { s.router.scale = std::nan(""); }},
    {"router_range", [](LayerSpec& s, Deployment&) { s.router.soft_cap = -1; }},
    {"router_range", [](LayerSpec& s, Deployment&) { s.router.normalize = RouterNormalize::p_norm, s.router.normalize_power = 0; }},
};

TEST(L11, EachBrokenRuleOfSpecAndDeploymentIsRefusedByItsCode) {
  ASSERT_TRUE(fake::try_plan(fake::gpt_oss()).plan) << "the unbroken layer plans";
  for (const Case& one : kBroken) {
    LayerSpec spec = fake::gpt_oss();
    Deployment deployment;
    one.change(spec, deployment);
    const PlanResult result = fake::try_plan(spec, deployment);
    EXPECT_FALSE(result.plan) << one.code;
    EXPECT_TRUE(fake::has_code(result.refusals, one.code))
        << one.code << ", not " << (result.refusals.empty() ? "nothing" : result.refusals[0].code);
    for (const Refusal& refusal : result.refusals)
      EXPECT_FALSE(refusal.rule.empty() || refusal.given.empty() || refusal.needed.empty()) << refusal.code;
  }
}

TEST(L11, WrongQuestionsAreInvalidArgumentsAndTheRestIsNotSupported) {
  for (const Case& one : kBroken)
    EXPECT_EQ(error_code_of({.code = one.code, .rule = "", .given = "", .needed = ""}),
              std::string_view(one.code) == "format_unknown" ? ErrorCode::not_supported : ErrorCode::invalid_argument)
        << one.code;
  EXPECT_EQ(error_code_of({.code = "of_a_backend", .rule = "", .given = "", .needed = ""}), ErrorCode::not_supported);
}

TEST(L11, AllRefusalsAreToldAtOnce) {
  LayerSpec spec = fake::gpt_oss();
  spec.down.format = "mxfp5";
  spec.top_k = 33;
  const PlanResult result = fake::try_plan(spec);
  EXPECT_EQ(result.refusals.size(), 2u);
  try {
    (void)result.value();
    FAIL();
  } catch (const Error& error) {
    for (const char* word : {"'mxfp5'", "mxfp4", "top_k 33", "top_k <= 32"})
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

TEST(L11, PublishedOdditiesAreNotRefused) {
  LayerSpec llama = fake::gpt_oss();
  llama.family = "llama4";
  llama.router.weight_site = WeightSite::input;
  EXPECT_FALSE(fake::try_plan(llama).plan) << "a family's name decides nothing";
  llama.router.sigmoid_weight = true;
  EXPECT_TRUE(fake::try_plan(llama).plan) << "any top_k is defined";
  LayerSpec ragged = fake::gpt_oss();
  ragged.gate_up = ragged.down = fake::projection("fp8_block");
  ragged.intermediate = 720;
  EXPECT_TRUE(fake::try_plan(ragged).plan) << "the last block may be ragged";
  ragged.gate_up.block_rows = 32, ragged.gate_up.block_cols = 64;
  EXPECT_TRUE(fake::try_plan(ragged).plan) << "the grid of fp8 scales is the checkpoint's choice";
  LayerSpec grouped = fake::gpt_oss();
  grouped.router.groups = 8, grouped.router.groups_kept = 4;
  EXPECT_TRUE(fake::try_plan(grouped).plan);
  LayerSpec all = fake::gpt_oss();
  all.top_k = all.experts;
  EXPECT_TRUE(fake::try_plan(all).plan);
}

}  // namespace
}  // namespace motet
