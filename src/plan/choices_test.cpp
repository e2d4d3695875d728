// SPDX-License-Identifier: Apache-2.0
#include "plan/choices.h"

#include <gtest/gtest.h>

#include "plan/fake_catalog.h"

namespace motet {
namespace {

const Choice& choice(const std::vector<Choice>& choices, std::string_view kind, std::string_view name) {
  const Choice* found = fake::find_choice(choices, kind, name);
  EXPECT_NE(found, nullptr) << kind << " " << name;
  static const Choice kNone{};
  return found != nullptr ? *found : kNone;
}

TEST(L11, EveryBackendTargetAndStrategyHasAVerdictWithAReason) {
  const Plan plan = fake::plan(fake::gpt_oss());
  for (const char* name : {"narrow", "wide", "aligned", "finalized"}) choice(plan.choices, "backend", name);
  for (const char* name : {"avx512_bf16", "avx2", "amx", "neon"}) choice(plan.choices, "target", name);
  for (const Choice& one : plan.choices) {
    EXPECT_EQ(one.refusal.has_value(), one.verdict == Verdict::refused) << one.kind << " " << one.name;
    EXPECT_NE(one.reason.empty(), one.verdict != Verdict::refused) << one.kind << " " << one.name;
    EXPECT_FALSE(one.refusal && (one.refusal->code.empty() || one.refusal->rule.empty() || one.refusal->given.empty() ||
                                 one.refusal->needed.empty()));
  }
  for (const char* kind : {"backend", "target", "arithmetic", "residence", "threads", "strategy", "scheduler", "finalize"})
    EXPECT_EQ(std::count_if(plan.choices.begin(), plan.choices.end(),
                            [&](const Choice& one) { return one.kind == kind && one.verdict == Verdict::chosen; }),
              1)
        << kind;
}

TEST(L11, TheBestBackendThatSupportsTheLayerIsChosenAndTheOthersSayWhyNot) {
  LayerSpec spec = fake::gpt_oss();
  spec.gate_up = spec.down = fake::projection("nvfp4");
  const Plan plan = fake::plan(spec);
  EXPECT_EQ(plan.backend, "wide");
  EXPECT_EQ(plan.target, "") << "wide has no targets";
  EXPECT_EQ(choice(plan.choices, "backend", "narrow").refusal->code, "format_not_built");
  EXPECT_FALSE(choice(plan.choices, "backend", "wide").substituted) << "nothing was wished";
}

TEST(L11, ATestTwinIsTakenOnlyWhenWishedByName) {
  EXPECT_EQ(fake::plan(fake::gpt_oss(), fake::with_backend("aligned")).backend, "aligned");
  Catalog twins = fake::catalog();
  twins.backends.erase(twins.backends.begin(), twins.backends.begin() + 2);
  const PlanResult result = plan_with(fake::gpt_oss(), {}, fake::environment(), twins);
  EXPECT_FALSE(result.plan);
  EXPECT_TRUE(fake::has_code(result.refusals, "no_backend"));
}

TEST(L11, ARefusedWishIsAnErrorUnlessSubstitutionIsAllowed) {
  struct Case {
    const char* kind;
    const char* refused;
    const char* code;
    const char* substitute;
    void (*wish)(Wishes&);
  };
  const Case cases[] = {
      {"residence", "packed", "residence_not_built", "mapped", [](Wishes& wishes) { wishes.residence = Residence::packed; }},
      {"target", "amx", "target_not_compiled", "avx512_bf16", [](Wishes& wishes) { wishes.target = "amx"; }},
      {"target", "neon", "target_not_usable", "avx512_bf16", [](Wishes& wishes) { wishes.target = "neon"; }}};
  for (const Case& one : cases) {
    Deployment deployment;
    one.wish(deployment.wishes);
    const PlanResult refused = fake::try_plan(fake::gpt_oss(), deployment);
    EXPECT_FALSE(refused.plan) << one.refused;
    ASSERT_FALSE(refused.refusals.empty()) << one.refused;
    for (const Refusal& refusal : refused.refusals) EXPECT_EQ(refusal.code, one.code);
    EXPECT_EQ(choice(refused.choices, one.kind, one.refused).verdict, Verdict::refused);
    try {
      (void)refused.value();
      FAIL() << one.refused;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::not_supported);
      EXPECT_NE(std::string(error.what()).find(one.refused), std::string::npos) << error.what();
    }
    deployment.wishes.allow_substitution = true;
    const Plan plan = fake::plan(fake::gpt_oss(), deployment);
    EXPECT_EQ(choice(plan.choices, one.kind, one.substitute).verdict, Verdict::chosen);
    EXPECT_TRUE(choice(plan.choices, one.kind, one.substitute).substituted);
    EXPECT_EQ(choice(plan.choices, one.kind, one.refused).refusal->code, one.code) << "the plan says what was refused";
  }
}

TEST(L11, ASubstitutedBackendIsMarked) {
  LayerSpec spec = fake::gpt_oss();
  spec.gate_up = spec.down = fake::projection("nvfp4");
  Deployment deployment = fake::with_backend("narrow");
  EXPECT_EQ(fake::try_plan(spec, deployment).refusals.at(0).code, "format_not_built");
  deployment.wishes.allow_substitution = true;
  const Plan plan = fake::plan(spec, deployment);
  EXPECT_EQ(plan.backend, "wide");
  EXPECT_TRUE(choice(plan.choices, "backend", "wide").substituted);
}

TEST(L11, ThePlannedDeploymentHoldsWhatWasTaken) {
  Deployment deployment;
  deployment.wishes.residence = Residence::packed;
  deployment.wishes.allow_substitution = true;
  const Plan plan = fake::plan(fake::gpt_oss(), deployment);
  EXPECT_EQ(plan.deployment.wishes.residence, Residence::mapped);
  EXPECT_EQ(plan.memory.packed, 0);
}

TEST(L11, AnUnknownNameIsRefusedWithTheKnownOnesAndNeverSubstituted) {
  for (const bool allowed : {false, true}) {
    Deployment deployment = fake::with_backend("narow");
    deployment.wishes.target = "avx1024";
    deployment.wishes.allow_substitution = allowed;
    const PlanResult result = fake::try_plan(fake::gpt_oss(), deployment);
    EXPECT_FALSE(result.plan);
    EXPECT_TRUE(fake::has_code(result.refusals, "backend_unknown"));
    EXPECT_TRUE(fake::has_code(result.refusals, "target_unknown"));
    try {
      (void)result.value();
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      for (const char* word : {"'narow'", "narrow", "wide", "'avx1024'", "avx512_bf16"})
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << word;
    }
  }
}

TEST(L11, ATargetForABackendWithoutTargetsIsRefused) {
  Deployment deployment = fake::with_backend("wide");
  deployment.wishes.target = "avx2";
  EXPECT_TRUE(fake::has_code(fake::try_plan(fake::gpt_oss(), deployment).refusals, "backend_has_no_targets"));
  deployment.wishes.backend = "";
  const Plan plan = fake::plan(fake::gpt_oss(), deployment);
  EXPECT_EQ(plan.backend, "narrow");
  EXPECT_EQ(plan.target, "avx2");
}

TEST(L11, MoreThreadsThanProcessorsIsSaid) {
  Deployment deployment;
  deployment.wishes.threads = 64;
  const Plan plan = fake::plan(fake::gpt_oss(), deployment);
  EXPECT_EQ(plan.threads, 64);
  EXPECT_NE(choice(plan.choices, "threads", "64").reason.find("more threads than processors"), std::string::npos);
  EXPECT_EQ(fake::plan(fake::gpt_oss()).threads, 2);
}

Deployment on_ranks(std::int64_t ep, const char* strategy = "", const char* wire = "") {
  Deployment deployment;
  deployment.ep = ep;
  deployment.wishes.strategy = strategy;
  deployment.wishes.wire = wire;
  return deployment;
}

TEST(L11, SeveralRanksTakeTheFirstStrategyThatCanExchangeTheirRows) {
  EXPECT_EQ(fake::plan(fake::gpt_oss()).strategy, "none");
  const Plan plan = fake::plan(fake::gpt_oss(), on_ranks(2));
  EXPECT_EQ(plan.strategy, "by_rank");
  EXPECT_EQ(choice(plan.choices, "strategy", "none").refusal->code, "strategy_needs_one_rank");
  EXPECT_EQ(choice(plan.choices, "strategy", "by_choice").verdict, Verdict::eligible);
  EXPECT_EQ(choice(plan.choices, "strategy", "replicated").refusal->code, "strategy_needs_replicated_tokens");
  EXPECT_NE(choice(plan.choices, "strategy", "by_rank").reason.find("of each token go to other ranks"), std::string::npos);
  Deployment replicated = on_ranks(2);
  replicated.placement = TokenPlacement::replicated;
  const Plan same_tokens = fake::plan(fake::gpt_oss(), replicated);
  EXPECT_EQ(same_tokens.strategy, "replicated");
  EXPECT_EQ(choice(same_tokens.choices, "strategy", "by_rank").refusal->code, "strategy_needs_sharded_tokens");
}

TEST(L11, AStrategyThatCannotBeTakenIsRefusedByName) {
  const auto codes = [](const LayerSpec& spec, const Deployment& deployment) {
    std::string all;
    for (const Refusal& refusal : fake::try_plan(spec, deployment).refusals) all += refusal.code + " ";
    return all;
  };
  LayerSpec spec = fake::gpt_oss();
  EXPECT_EQ(codes(spec, on_ranks(1, "by_rank")), "strategy_needs_ranks ");
  EXPECT_EQ(codes(spec, on_ranks(1, "", "fp8")), "wire_needs_ranks ");
  EXPECT_EQ(codes(spec, on_ranks(2, "none")), "strategy_needs_one_rank ");
  EXPECT_EQ(codes(spec, on_ranks(2, "by_rnak")), "strategy_unknown ");
  EXPECT_EQ(codes(spec, on_ranks(2, "", "fp31")), "wire_unknown ");
  EXPECT_EQ(codes(spec, on_ranks(2, "", "fp8")), "wire_not_built ");
  Deployment deployment = on_ranks(2, "by_rank", "bf16");
  deployment.wishes.invariant = true;
  EXPECT_EQ(codes(spec, deployment), "strategy_not_invariant wire_not_invariant ");
  deployment = on_ranks(2, "", "bf16");
  deployment.wishes.arithmetic = Arithmetic::exact;
  EXPECT_EQ(codes(spec, deployment), "wire_not_exact ");
  deployment = on_ranks(2, "weighs_back");
  deployment.wishes.finalize = Finalize::hook;
  EXPECT_EQ(codes(spec, deployment), "hook_weights_in_combine ");
  spec.top_k = 1;
  spec.router.weight_site = WeightSite::input;
  EXPECT_EQ(codes(spec, on_ranks(2, "weighs_back")), "weight_on_input_in_combine ");
  deployment = on_ranks(2, "by_rank", "bf16");
  deployment.wishes.invariant = deployment.wishes.allow_substitution = true;
  const Plan substitute = fake::plan(fake::gpt_oss(), deployment);
  EXPECT_EQ(substitute.strategy, "by_choice");
  EXPECT_TRUE(choice(substitute.choices, "strategy", "by_choice").substituted);
  EXPECT_TRUE(choice(substitute.choices, "wire", "fp32").substituted);
  EXPECT_EQ(substitute.deployment.wishes.strategy, "by_choice") << "as planned";
  EXPECT_EQ(substitute.deployment.wishes.wire, "fp32");
  deployment = on_ranks(2);
  deployment.placement = TokenPlacement::replicated;
  deployment.wishes.invariant = true;
  const auto none = fake::try_plan(fake::gpt_oss(), deployment).refusals;
  EXPECT_NE(none.front().given.find("replicated: strategy_not_invariant"), std::string::npos) << none.front().given;
  deployment = on_ranks(1);
  deployment.tp = 2;
  deployment.wishes.finalize = Finalize::hook;
  EXPECT_TRUE(fake::has_code(fake::try_plan(fake::gpt_oss(), deployment).refusals, "hook_split_experts"));
}

TEST(L15, TheWireIsBf16UnlessTheLevelLeavesNoRoomForIt) {
  EXPECT_EQ(fake::plan(fake::gpt_oss(), on_ranks(2)).recipe.wire, DType::bf16);
  EXPECT_EQ(fake::plan(fake::gpt_oss(), on_ranks(2, "", "fp32")).recipe.wire, DType::f32);
  Deployment deployment = on_ranks(2);
  deployment.wishes.arithmetic = Arithmetic::exact;
  EXPECT_EQ(fake::plan(fake::gpt_oss(), deployment).recipe.wire, DType::f32);
  EXPECT_EQ(fake::plan(fake::gpt_oss()).recipe.wire, DType::f32) << "one rank sends nothing";
}

TEST(L12, TheResultTypeIsThePlansAndIsNeverSubstituted) {
  for (const Finalize form : {Finalize::unfinalized, Finalize::hook}) {
    Deployment deployment = fake::with_backend("finalized");
    deployment.wishes.finalize = form;
    EXPECT_TRUE(fake::has_code(fake::try_plan(fake::gpt_oss(), deployment).refusals, "finalize_not_built"));
    deployment.wishes.backend = "";
    EXPECT_EQ(fake::plan(fake::gpt_oss(), deployment).deployment.wishes.finalize, form);
  }
  const Plan plan = fake::plan(fake::gpt_oss(), fake::with_backend("finalized"));
  EXPECT_EQ(choice(plan.choices, "finalize", "hook").refusal->code, "finalize_not_built") << "capability is per backend and form";
}

TEST(L12, AWeightOnTheInputRefusesHooksAndUnfinalizedRows) {
  LayerSpec spec = fake::gpt_oss();
  spec.top_k = 1;
  spec.router.weight_site = WeightSite::input;
  for (const bool allowed : {false, true}) {
    Deployment deployment;
    deployment.wishes.allow_substitution = allowed;
    deployment.wishes.finalize = Finalize::hook;
    EXPECT_TRUE(fake::has_code(fake::try_plan(spec, deployment).refusals, "hook_weight_on_input"));
    deployment.wishes.finalize = Finalize::unfinalized;
    EXPECT_TRUE(fake::has_code(fake::try_plan(spec, deployment).refusals, "unfinalized_weight_on_input"));
  }
}

TEST(L12, UnfinalizedRowsOfSeveralRanksNeedAHook) {
  Deployment deployment;
  deployment.ep = 2;
  deployment.wishes.finalize = Finalize::unfinalized;
  EXPECT_TRUE(fake::has_code(fake::try_plan(fake::gpt_oss(), deployment).refusals, "unfinalized_distributed"));
  deployment.wishes.finalize = Finalize::hook;
  EXPECT_TRUE(fake::try_plan(fake::gpt_oss(), deployment).plan);
}

TEST(L12, UnfinalizedRowsOfSeveralChunksNeedAHook) {
  Deployment deployment;
  deployment.tokens = 9;
  deployment.chunk_tokens = 8;
  deployment.wishes.finalize = Finalize::unfinalized;
  EXPECT_TRUE(fake::has_code(fake::try_plan(fake::gpt_oss(), deployment).refusals, "unfinalized_chunked"));
  deployment.wishes.finalize = Finalize::hook;
  const Plan plan = fake::try_plan(fake::gpt_oss(), deployment).plan.value();
  EXPECT_NE(choice(plan.choices, "scheduler", "external").reason.find("8 tokens at once"), std::string::npos);
  EXPECT_EQ(plan.width(Axis::tokens)->stored, 8);
  deployment.chunk_tokens = 9;  // all at once
  deployment.wishes.finalize = Finalize::unfinalized;
  EXPECT_TRUE(fake::try_plan(fake::gpt_oss(), deployment).plan);
}

TEST(L14, TheRoutingWeightHasOneSiteAndTheRecipeNamesIt) {
  LayerSpec spec = fake::gpt_oss();
  spec.top_k = 1;
  const auto stage_reads_weights = [](const Plan& plan, StageId id) {
    for (const Stage& stage : plan.stages)
      if (stage.id == id)
        for (const TensorType& tensor : stage.in)
          if (tensor.name == "top_k_weights") return true;
    return false;
  };
  for (const WeightSite site : {WeightSite::input, WeightSite::finalize}) {
    spec.router.weight_site = site;
    const Plan plan = fake::plan(spec);
    EXPECT_EQ(plan.recipe.weight_site, site);
    EXPECT_EQ(stage_reads_weights(plan, StageId::prepare), site == WeightSite::input);
    EXPECT_EQ(stage_reads_weights(plan, StageId::finalize), site == WeightSite::finalize);
  }
  for (const WeightSite site : {WeightSite::activation, WeightSite::combine}) {
    spec.router.weight_site = site;
    EXPECT_TRUE(fake::has_code(fake::try_plan(spec).refusals, "weight_site_not_built"));
  }
}

TEST(Recipe, TheBoundFollowsTheLevelAndTheArithmetic) {
  Deployment deployment;
  EXPECT_DOUBLE_EQ(fake::plan(fake::gpt_oss(), deployment).recipe.error_bound, 4e-3);
  deployment.wishes.arithmetic = Arithmetic::exact;
  const Plan exact = fake::plan(fake::gpt_oss(), deployment);
  EXPECT_DOUBLE_EQ(exact.recipe.error_bound, 2e-4);
  EXPECT_EQ(exact.recipe.arithmetic, "f32");
  Catalog doubles = fake::catalog();
  doubles.backends[1].storage = [](const BackendRequest& request) {
    BackendStorage out = fake::storage<1>(request);
    out.arithmetic = "double";
    return out;
  };
  EXPECT_DOUBLE_EQ(plan_with(fake::gpt_oss(), fake::with_backend("wide"), fake::environment(), doubles).value().recipe.error_bound,
                   2e-6);
}

}  // namespace
}  // namespace motet
