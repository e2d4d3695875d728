// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "plan/fake_catalog.h"
#include "plan/tail.h"

namespace motet {
namespace {

using Ops = std::vector<TailOp>;

Ops ops_of(const std::vector<TailStep>& steps) {
  Ops ops;
  for (const TailStep& step : steps) ops.push_back(step.op);
  return ops;
}

LayerSpec scaled_sum(std::int64_t latent, bool norm) {
  LayerSpec spec = fake::nemotron(latent);
  spec.router.scale_site = ScaleSite::routed_sum;
  spec.latent_norm = norm;
  return spec;
}

/// The plan's own tail with its steps in another order, states written as if it were right.
std::string reason_for(const Ops& order, const TailFacts& facts) {
  std::vector<TailStep> steps;
  std::int64_t width = facts.stored_width;
  bool reduced = facts.reduced, scaled = facts.spec.router.scale_site == ScaleSite::weights;
  for (const TailOp op : order) {
    TailStep step{.op = op, .width_in = width, .reduced_in = reduced, .scaled_in = scaled};
    if (op == TailOp::truncate) width = facts.spec.dispatch_width();
    if (op == TailOp::latent_out) width = facts.spec.hidden;
    if (op == TailOp::reduce) reduced = true;
    if (op == TailOp::scale) scaled = true;
    step.width_out = width, step.reduced_out = reduced, step.scaled_out = scaled;
    steps.push_back(step);
  }
  return check_tail(steps, facts).value_or("");
}

TEST(L5, ALatentLayersTailInOrder) {
  const LayerSpec spec = scaled_sum(1024, true);
  EXPECT_EQ(ops_of(make_tail({.spec = spec, .stored_width = 1024})),
            (Ops{TailOp::scale, TailOp::latent_norm, TailOp::latent_out, TailOp::add_shared, TailOp::round}));
  EXPECT_EQ(ops_of(make_tail({.spec = spec, .stored_width = 1280, .reduced = false})),
            (Ops{TailOp::truncate, TailOp::reduce, TailOp::scale, TailOp::latent_norm, TailOp::latent_out, TailOp::add_shared,
                 TailOp::round}));
}

TEST(L5, APartialSharedExpertJoinsTheOneSumOverRanks) {
  const LayerSpec spec = scaled_sum(1024, false);
  EXPECT_EQ(ops_of(make_tail({.spec = spec, .stored_width = 1024, .reduced = false, .shared_sliced = true})),
            (Ops{TailOp::scale, TailOp::latent_out, TailOp::add_shared, TailOp::reduce, TailOp::round}));
}

TEST(L5, EveryPlannedTailPassesItsCheck) {
  for (const std::int64_t latent : {0, 1024})
    for (const bool norm : {false, latent > 0})
      for (const std::int64_t tp : {1, 2, 4})
        for (const char* backend : {"narrow", "wide"})
          for (const std::int64_t zero : {0, 2}) {
            LayerSpec spec = scaled_sum(latent, norm);
            if (zero > 0) {
              spec.router.zero_experts = zero;
              spec.router.zero_expert_kind = ZeroExpertKind::identity;
              spec.router.scale_site = ScaleSite::weights;
            }
            Deployment deployment = fake::with_backend(backend);
            deployment.tp = tp;
            deployment.placement = TokenPlacement::replicated;
            const PlanResult result = fake::try_plan(spec, deployment);
            ASSERT_TRUE(result.plan) << result.refusals.front().rule;
            EXPECT_EQ(check_tail(result.plan->tail, {.spec = spec,
                                                     .stored_width = result.plan->stored(Axis::down_out),
                                                     .reduced = tp == 1,
                                                     .shared_sliced = tp > 1 && !norm && zero == 0}),
                      std::nullopt);
          }
}

TEST(L5, AddendsOfDifferentWidthAreRefused) {
  const LayerSpec spec = fake::nemotron(0);
  EXPECT_EQ(reason_for({TailOp::add_shared, TailOp::round}, {.spec = spec, .stored_width = 2816}),
            "add_shared: both addends have the true hidden width");
  EXPECT_EQ(reason_for({TailOp::add_shared, TailOp::truncate, TailOp::round}, {.spec = spec, .stored_width = 2816}),
            "add_shared: both addends have the true hidden width");
}

TEST(L5, AddendsInDifferentReducedStatesAreRefused) {
  const LayerSpec spec = fake::nemotron(0);
  EXPECT_EQ(reason_for({TailOp::add_shared, TailOp::reduce, TailOp::round}, {.spec = spec, .stored_width = 2688, .reduced = false}),
            "add_shared: both addends are in the same reduced state");
  EXPECT_EQ(reason_for({TailOp::reduce, TailOp::add_shared, TailOp::round},
                       {.spec = spec, .stored_width = 2688, .reduced = false, .shared_sliced = true}),
            "reduce: the partial shared expert must be in the one sum over ranks");
}

TEST(L5, TheRoutedScaleIsAppliedExactlyOnceAndNeverToTheSharedExpert) {
  const LayerSpec spec = scaled_sum(0, false);
  const TailFacts facts{.spec = spec, .stored_width = 2688};
  EXPECT_EQ(reason_for({TailOp::add_shared, TailOp::scale, TailOp::round}, facts),
            "add_shared: the routed scale must not reach the shared expert");
  EXPECT_EQ(reason_for({TailOp::scale, TailOp::scale, TailOp::add_shared, TailOp::round}, facts),
            "scale: the routed scale is applied exactly once");
  EXPECT_EQ(reason_for({TailOp::add_shared, TailOp::round}, facts),
            "add_shared: the routed scale must not reach the shared expert");
  const LayerSpec in_weights = fake::nemotron(0);
  EXPECT_EQ(reason_for({TailOp::scale, TailOp::add_shared, TailOp::round}, {.spec = in_weights, .stored_width = 2688}),
            "scale: the routed scale is applied exactly once");
}

TEST(L5, ANormIsNotLinearSoTheSumOverRanksComesFirst) {
  const LayerSpec spec = scaled_sum(1024, true);
  EXPECT_EQ(reason_for({TailOp::scale, TailOp::latent_norm, TailOp::reduce, TailOp::latent_out, TailOp::add_shared, TailOp::round},
                       {.spec = spec, .stored_width = 1024, .reduced = false}),
            "latent_norm: the norm is not linear: the sum over ranks comes first");
  EXPECT_EQ(reason_for({TailOp::latent_norm, TailOp::scale, TailOp::latent_out, TailOp::add_shared, TailOp::round},
                       {.spec = spec, .stored_width = 1024}),
            "latent_norm: a scale after the norm is not a scale before it");
}

TEST(L5, ALinearLatentLayerIsReducedOnce) {
  const LayerSpec spec = fake::nemotron(1024);
  EXPECT_EQ(reason_for({TailOp::reduce, TailOp::latent_out, TailOp::reduce, TailOp::add_shared, TailOp::round},
                       {.spec = spec, .stored_width = 1024, .reduced = false}),
            "reduce: each step at most once");
  EXPECT_EQ(
      reason_for({TailOp::reduce, TailOp::latent_out, TailOp::add_shared, TailOp::round}, {.spec = spec, .stored_width = 1024}),
      "reduce: the sum over ranks is already done");
  EXPECT_EQ(
      reason_for({TailOp::latent_out, TailOp::add_shared, TailOp::round}, {.spec = spec, .stored_width = 1024, .reduced = false}),
      "add_shared: both addends are in the same reduced state");
}

TEST(L5, ZeroExpertsAreAddedOnceAfterTheSumOverRanks) {
  LayerSpec spec = fake::nemotron(0);
  spec.shared = {};
  spec.router.zero_experts = 2;
  spec.router.zero_expert_kind = ZeroExpertKind::identity;
  EXPECT_EQ(
      reason_for({TailOp::add_zero_experts, TailOp::reduce, TailOp::round}, {.spec = spec, .stored_width = 2688, .reduced = false}),
      "add_zero_experts: every rank would add the zero experts: the sum over ranks comes first");
}

TEST(L5, NoStepIsForgottenOrForeign) {
  const LayerSpec spec = scaled_sum(1024, true);
  const TailFacts facts{.spec = spec, .stored_width = 1280, .reduced = false};
  const Ops right = ops_of(make_tail(facts));
  EXPECT_EQ(reason_for(right, facts), "");
  for (std::size_t i = 0; i < right.size(); ++i) {
    Ops without = right;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_NE(reason_for(without, facts), "") << "without " << name_of(right[i]);
  }
  for (std::size_t i = 0; i + 1 < right.size(); ++i) {
    if (right[i] == TailOp::reduce) continue;  // scale and reduce commute
    Ops swapped = right;
    std::swap(swapped[i], swapped[i + 1]);
    EXPECT_NE(reason_for(swapped, facts), "") << "swapped " << name_of(right[i]);
  }
  LayerSpec plain = fake::gpt_oss();
  EXPECT_EQ(reason_for({TailOp::add_shared, TailOp::round}, {.spec = plain, .stored_width = 2880}),
            "add_shared: the layer has no such step");
}

TEST(L5, AStepThatClaimsAnotherStateIsRefused) {
  const LayerSpec spec = scaled_sum(1024, false);
  const TailFacts facts{.spec = spec, .stored_width = 1280, .reduced = false};
  const std::vector<TailStep> right = make_tail(facts);
  for (std::size_t i = 0; i < right.size(); ++i) {
    for (std::int64_t TailStep::*width : {&TailStep::width_in, &TailStep::width_out}) {
      std::vector<TailStep> wrong = right;
      wrong[i].*width += 1;
      EXPECT_NE(check_tail(wrong, facts), std::nullopt);
    }
    for (bool TailStep::*state : {&TailStep::reduced_in, &TailStep::reduced_out, &TailStep::scaled_in, &TailStep::scaled_out}) {
      std::vector<TailStep> wrong = right;
      wrong[i].*state = !(wrong[i].*state);
      EXPECT_NE(check_tail(wrong, facts), std::nullopt);
    }
  }
}

}  // namespace
}  // namespace motet
